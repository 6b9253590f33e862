// SPDX-License-Identifier: BSD-3-Clause
// The command line tool: quantizes, runs and judges ONNX models.
// Exit codes: 0 ok, 1 the job failed (one line on standard error), 2 wrong usage.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <CLI/CLI.hpp>

#include <detent/version.hpp>

#include "commands.hpp"
#include "quantize_options.hpp"
#include "usage_error.hpp"

namespace {

/// Prints a message as one line on standard error. Names in it come from files, so control
/// characters are replaced.
void print_error(const char* message) {
  std::string text = message;
  for (char& c : text) {
    c = static_cast<unsigned char>(c) < ' ' || c == '\x7F' ? '?' : c;
  }
  std::fprintf(stderr, "%s%s\n", text.rfind("detent: ", 0) == 0 ? "" : "detent: ", text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"detent: INT8 quantization of ONNX models"};
  app.require_subcommand(1);
  const std::string version = std::to_string(DETENT_VERSION_MAJOR) + "." +
                              std::to_string(DETENT_VERSION_MINOR) + "." +
                              std::to_string(DETENT_VERSION_PATCH);
  app.set_version_flag("--version", version);

  CLI::App* quantize_command =
      app.add_subcommand("quantize", "Quantizes a float model with calibration samples");
  detent_cli::quantize_options quantize(*quantize_command);

  detent_cli::eval_arguments eval;
  CLI::App* eval_command = app.add_subcommand("eval", "Measures top-1 and top-5 accuracy");
  eval_command->add_option("MODEL", eval.model, "ONNX model, float or quantized")->required();
  eval_command->add_option("--data", eval.data, "[NAME=]X.npy: samples of an input")->required();
  eval_command->add_option("--labels", eval.labels, "Y.npy: one integer for each sample")
      ->required();
  eval_command->add_option("--samples", eval.samples,
                           "A:B: only samples A up to, not including, B");
  eval_command->add_option("--batch", eval.batch, "Samples in one run")->check(CLI::PositiveNumber);
  eval_command->add_option("--threads", eval.threads, "Threads in one run")
      ->check(CLI::PositiveNumber);
  eval_command->add_option("--target", eval.target, "CPU target (see: detent targets)");

  detent_cli::run_arguments run;
  CLI::App* run_command = app.add_subcommand("run", "Runs a model and writes its outputs as .npy");
  run_command->add_option("MODEL", run.model, "ONNX model, float or quantized")->required();
  run_command->add_option("--input", run.inputs, "[NAME=]X.npy: an input")->required();
  run_command->add_option("-o,--output", run.output, "Folder for one .npy for each output")
      ->required();

  detent_cli::compare_arguments compare;
  CLI::App* compare_command =
      app.add_subcommand("compare", "Compares a quantized model with its float original");
  compare_command->add_option("FLOAT", compare.reference, "Float ONNX model")->required();
  compare_command->add_option("QUANT", compare.quantized, "Quantized ONNX model")->required();
  compare_command->add_option("--data", compare.data, "[NAME=]X.npy: samples of an input")
      ->required();
  compare_command->add_option("--samples", compare.samples,
                              "A:B: only samples A up to, not including, B");

  detent_cli::inspect_arguments inspect;
  CLI::App* inspect_command = app.add_subcommand("inspect", "Describes a model");
  inspect_command->add_option("MODEL", inspect.model, "ONNX model")->required();

  detent_cli::conformance_arguments conformance;
  CLI::App* conformance_command = app.add_subcommand("conformance", "Runs ONNX node tests");
  conformance_command
      ->add_option("DIR", conformance.folders, "Folders that hold model.onnx, or others")
      ->required();

  CLI::App* targets_command = app.add_subcommand("targets", "Lists CPU targets");

  bool json = false;
  for (CLI::App* command : {quantize_command, eval_command, run_command, compare_command,
                            inspect_command, conformance_command, targets_command}) {
    command->add_flag("--json", json, "Print the same facts as JSON");
  }

  const auto is_first = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_first).empty()) {
    std::fprintf(stderr, "detent: there is no command '%s' (see: detent --help)\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }

  try {
    if (quantize_command->parsed()) {
      detent_cli::quantize_arguments arguments = quantize.arguments();
      arguments.json = json;
      return detent_cli::quantize(arguments);
    }
    if (eval_command->parsed()) {
      eval.json = json;
      return detent_cli::eval(eval);
    }
    if (run_command->parsed()) {
      run.json = json;
      return detent_cli::run(run);
    }
    if (compare_command->parsed()) {
      compare.json = json;
      return detent_cli::compare(compare);
    }
    if (inspect_command->parsed()) {
      inspect.json = json;
      return detent_cli::inspect(inspect);
    }
    if (conformance_command->parsed()) {
      conformance.json = json;
      return detent_cli::conformance(conformance);
    }
    return detent_cli::targets(json);
  } catch (const detent_cli::usage_error& e) {
    print_error(e.what());
    return 2;
  } catch (const std::bad_alloc&) {
    print_error("not enough memory");
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  return 1;
}
