// SPDX-License-Identifier: BSD-3-Clause
// The command line tool: quantizes, runs and judges ONNX models.
// Exit codes: 0 ok, 1 the job failed (one line on standard error), 2 wrong usage.
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/error.hpp>
#include <detent/version.hpp>

#include "command_help.hpp"
#include "commands.hpp"
#include "man_page.hpp"
#include "observe_options.hpp"
#include "parse_errors.hpp"
#include "quantize_options.hpp"
#include "shell_completion.hpp"
#include "train.hpp"
#include "train_options.hpp"
#include "usage_error.hpp"
#include "whole_number.hpp"

namespace {

/// Prints a message as one line on standard error. Names in it come from files, so control
/// characters are replaced.
void print_error(const char* message) {
  const std::string text = detent::one_line(message);
  std::fprintf(stderr, "%s%s\n", text.rfind("detent: ", 0) == 0 ? "" : "detent: ", text.c_str());
}

/// The help of options that name samples.
constexpr const char* samples_text =
    "[NAME=]FILE[:axis=K|:fixed] or FOLDER: samples; FILE is .npy or .pb, its axis K (0) counts "
    "samples, or each run takes it whole (:fixed); FOLDER has a folder sample_I for each sample "
    "with "
    "input_J.npy, input_J.pb or NAME.npy, or is ONNX test data";

/// Whether all that was printed has reached standard output. If not, says so.
bool is_output_written() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) {
    return true;
  }
  const std::string reason = errno != 0 ? ": " + std::generic_category().message(errno) : "";
  print_error(("cannot write to standard output" + reason).c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
#ifdef SIGXFSZ
  // A file that would become too large is an error to report, with nothing half-written left.
  static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
#endif
  CLI::App app{"detent: INT8 quantization of ONNX models", "detent"};
  app.require_subcommand(1);
  const std::string version = std::to_string(DETENT_VERSION_MAJOR) + "." +
                              std::to_string(DETENT_VERSION_MINOR) + "." +
                              std::to_string(DETENT_VERSION_PATCH);
  app.set_version_flag("--version", version);

  CLI::App* quantize_command =
      app.add_subcommand("quantize", "Quantizes a float model with calibration samples");
  detent_cli::quantize_options quantize(*quantize_command);

  CLI::App* observe_command = app.add_subcommand(
      "observe", "Observes a share of the calibration samples, for detent quantize --states");
  detent_cli::observe_options observe(*observe_command);

  CLI::App* train_command = app.add_subcommand(
      "train", "Trains a model in float, or as the quantized model that it becomes");
  detent_cli::train_options train(*train_command);

  detent_cli::eval_arguments eval;
  CLI::App* eval_command = app.add_subcommand("eval", "Measures top-1 and top-5 accuracy");
  eval_command->add_option("MODEL", eval.model, "ONNX model, float or quantized")->required();
  eval_command->add_option("--data", eval.data, samples_text);
  eval_command->add_option("--labels", eval.labels, "Y.npy: one integer for each sample")
      ->required();
  eval_command->add_option("--samples", eval.samples,
                           "A:B: only samples A up to, not including, B");
  eval_command->add_option("--batch", eval.batch, "Samples in one run")
      ->transform(detent_cli::whole_number(1, std::uint64_t{1} << 30U));
  eval_command->add_option("--threads", eval.threads, "Threads in one run")
      ->transform(detent_cli::whole_number(1, 1024));
  eval_command->add_option("--target", eval.target, "CPU target (see: detent targets)");

  detent_cli::run_arguments run;
  CLI::App* run_command = app.add_subcommand("run", "Runs a model and writes its outputs as .npy");
  run_command->add_option("MODEL", run.model, "ONNX model, float or quantized")->required();
  run_command->add_option("--input", run.inputs, samples_text);
  run_command
      ->add_option("-o,--output", run.output,
                   "Folder for one .npy for each output; samples of a folder get a folder each")
      ->required();

  detent_cli::compare_arguments compare;
  CLI::App* compare_command =
      app.add_subcommand("compare", "Compares a quantized model with its float original");
  compare_command->add_option("FLOAT", compare.reference, "Float ONNX model")->required();
  compare_command->add_option("QUANT", compare.quantized, "Quantized ONNX model")->required();
  compare_command->add_option("--data", compare.data, samples_text);
  compare_command->add_option("--samples", compare.samples,
                              "A:B: only samples A up to, not including, B");

  detent_cli::inspect_arguments inspect;
  CLI::App* inspect_command = app.add_subcommand("inspect", "Describes a model");
  inspect_command->add_option("MODEL", inspect.model, "ONNX model")->required();

  detent_cli::conformance_arguments conformance;
  CLI::App* conformance_command = app.add_subcommand("conformance", "Runs ONNX node tests");
  conformance_command
      ->add_option("DIR", conformance.folders,
                   "Folders with model.onnx and test_data_set_0, as the sources of ONNX have them "
                   "in onnx/backend/test/data/node, or folders of such")
      ->required();

  CLI::App* targets_command = app.add_subcommand("targets", "Lists CPU targets");

  std::string shell;
  CLI::App* completion_command =
      app.add_subcommand("completion", "Prints a script that completes command lines in a shell");
  completion_command->add_option("SHELL", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  CLI::App* man_command = app.add_subcommand("man", "Prints the manual page, in roff");
  std::string explained;
  CLI::App* help_command = app.add_subcommand("help", "Explains a command, with examples");

  detent_cli::common_arguments common;
  for (CLI::App* command :
       {quantize_command, observe_command, train_command, eval_command, run_command,
        compare_command, inspect_command, conformance_command, targets_command}) {
    command->add_flag("--json", common.json, "Print the same facts as JSON");
  }
  for (CLI::App* command : {quantize_command, observe_command, train_command, eval_command,
                            run_command, compare_command, inspect_command, conformance_command}) {
    command
        ->add_option("--memory-limit", common.memory_limit,
                     "Most bytes (or 512M, 4G, ...) for a model's constants (default: 64G), and "
                     "for a run's values (default: 16G)")
        ->transform(detent_cli::byte_count(std::uint64_t{1} << 60U));
  }

  for (CLI::App* command : {eval_command, run_command, compare_command}) {
    command
        ->add_option("--winograd", common.winograd_tile,
                     "Computes 3x3 convolutions of floats by Winograd's algorithm, with tiles of "
                     "2 x 2 or 4 x 4 outputs: faster; with 4, rounding errors are larger")
        ->check(CLI::IsMember({2, 4}));
  }

  std::vector<std::string> command_names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    command_names.push_back(command->get_name());
  }
  help_command->add_option("COMMAND", explained, "The command; without it, all commands")
      ->check(CLI::IsMember(command_names));
  detent_cli::complete_help(app);

  const auto is_first = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_first).empty()) {
    std::fprintf(stderr, "detent: there is no command '%s' (see: detent --help)\n",
                 detent::one_line(argv[1]).c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) {
      print_error(
          detent_cli::explained(e, app, std::vector<std::string>(argv + 1, argv + argc)).c_str());
      std::fprintf(stderr, "Run with --help for more information.\n");
      return 2;
    }
    app.exit(e);  // help or version
    return is_output_written() ? 0 : 1;
  }

  const auto run_parsed_command = [&] {
    if (help_command->parsed() || completion_command->parsed() || man_command->parsed()) {
      std::cout << (completion_command->parsed() ? detent_cli::completion_script(app, shell)
                    : man_command->parsed()      ? detent_cli::man_page(app, version)
                    : explained.empty()
                        ? app.get_formatter()->make_help(&app, "detent", CLI::AppFormatMode::Normal)
                        : app.get_subcommand(explained)->help("detent"));
      return 0;
    }
    if (quantize_command->parsed()) {
      detent_cli::quantize_arguments arguments = quantize.arguments();
      static_cast<detent_cli::common_arguments&>(arguments) = common;
      return detent_cli::quantize(arguments);
    }
    if (observe_command->parsed()) {
      detent_cli::observe_arguments arguments = observe.arguments();
      static_cast<detent_cli::common_arguments&>(arguments) = common;
      return detent_cli::observe(arguments);
    }
    if (train_command->parsed()) {
      detent_cli::train_arguments arguments = train.arguments();
      static_cast<detent_cli::common_arguments&>(arguments) = common;
      return detent_cli::train(arguments);
    }
    if (eval_command->parsed()) {
      static_cast<detent_cli::common_arguments&>(eval) = common;
      return detent_cli::eval(eval);
    }
    if (run_command->parsed()) {
      static_cast<detent_cli::common_arguments&>(run) = common;
      return detent_cli::run(run);
    }
    if (compare_command->parsed()) {
      static_cast<detent_cli::common_arguments&>(compare) = common;
      return detent_cli::compare(compare);
    }
    if (inspect_command->parsed()) {
      static_cast<detent_cli::common_arguments&>(inspect) = common;
      return detent_cli::inspect(inspect);
    }
    if (conformance_command->parsed()) {
      static_cast<detent_cli::common_arguments&>(conformance) = common;
      return detent_cli::conformance(conformance);
    }
    return detent_cli::targets(common.json);
  };
  try {
    const int code = run_parsed_command();
    return is_output_written() ? code : 1;
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
