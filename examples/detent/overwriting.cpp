// SPDX-License-Identifier: BSD-3-Clause
#include "overwriting.hpp"

#include <filesystem>
#include <system_error>

#include "usage_error.hpp"

namespace detent_cli {
namespace {

namespace fs = std::filesystem;

/// Whether both paths lead to one file, which may not exist yet.
bool is_same_file(const std::string& a, const std::string& b) {
  if (a.find('\0') != std::string::npos || b.find('\0') != std::string::npos) {
    return false;  // paths that are refused where they are opened
  }
  std::error_code failed;
  const fs::file_status status = fs::status(a, failed);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return false;  // a folder or a device
  }
  if (fs::equivalent(a, b, failed)) {
    return true;
  }
  const fs::path first = fs::weakly_canonical(a, failed);
  return !failed && first == fs::weakly_canonical(b, failed) && !failed;
}

}  // namespace

std::vector<named_file> files_named_by(const std::string& option,
                                       const std::vector<std::string>& values) {
  std::vector<named_file> files;
  for (const std::string& value : values) {
    std::vector<std::string> paths{value};
    if (const std::size_t equals = value.find('='); equals != std::string::npos) {
      paths.push_back(value.substr(equals + 1));
    }
    for (std::size_t i = paths.size(); i-- > 0;) {
      if (const std::size_t colon = paths[i].rfind(':'); colon != std::string::npos) {
        paths.push_back(paths[i].substr(0, colon));
      }
    }
    for (std::string& path : paths) {
      std::error_code ignored;
      if (fs::is_regular_file(path, ignored)) {
        files.push_back({option, std::move(path)});
      }
    }
  }
  return files;
}

void require_apart(const std::vector<named_file>& read, const std::vector<named_file>& written) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (const named_file& other : read) {
      if (is_same_file(other.path, written[i].path)) {
        throw usage_error(written[i].option + " " + written[i].path + " would overwrite " +
                          other.option + " " + other.path);
      }
    }
    for (std::size_t k = 0; k < i; ++k) {
      if (is_same_file(written[k].path, written[i].path)) {
        throw usage_error(written[i].option + " " + written[i].path + " would overwrite " +
                          written[k].option + " " + written[k].path);
      }
    }
  }
}

void require_nothing_overwritten(const CLI::App& command, bool in_place) {
  const auto values_of = [&command](const char* name) {
    const CLI::Option* option = command.get_option_no_throw(name);
    return option == nullptr ? std::vector<std::string>() : option->results();
  };
  std::vector<named_file> read;
  for (const char* name : {"MODEL", "--config", "--calib", "--validation", "--labels", "--states",
                           "--data", "--validation-labels", "--setting", "--plugin"}) {
    const std::vector<named_file> files = files_named_by(name, values_of(name));
    read.insert(read.end(), files.begin(), files.end());
  }
  std::vector<named_file> written;
  for (const char* name : {"--output", "--report", "--error-report", "--export"}) {
    for (const std::string& value : values_of(name)) {
      const bool has_kind = name == std::string("--export");
      written.push_back({name, has_kind ? value.substr(value.find('=') + 1) : value});
    }
  }
  std::erase_if(written, [](const named_file& f) { return f.path.empty(); });
  if (in_place && !written.empty()) {  // the first one is --output, which stands for both then
    std::erase_if(read, [&](const named_file& f) {
      return f.option == "MODEL" && is_same_file(f.path, written[0].path);
    });
  }
  require_apart(read, written);
}

void require_data_apart(const detent::graph::model& m, const std::string& input,
                        const std::string& output) {
  if (is_same_file(input, output)) {
    return;
  }
  for (const std::string& file : m.external_files) {
    if (is_same_file(file, output + ".data")) {
      throw usage_error("--output " + output + " would overwrite the external data of " + input +
                        ": " + file);
    }
  }
}

}  // namespace detent_cli
