// SPDX-License-Identifier: BSD-3-Clause
#include "overwriting.hpp"

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "usage_error.hpp"

namespace detent_cli {
namespace {

namespace fs = std::filesystem;

/// Files by all paths that lead to them. A model may have very many outputs, so that files are not
/// compared with each other one by one.
class file_list {
 public:
  /// Adds a file, which may not exist yet, unless it is here under this or another name. Returns
  /// the file that is here then, otherwise null. Folders and devices are not added. What is
  /// returned is valid as long as the list.
  const named_file* add(const named_file& file) {
    if (file.path.find('\0') != std::string::npos) {
      return nullptr;  // a path that is refused where it is opened
    }
    std::error_code failed;
    const fs::file_status status = fs::status(file.path, failed);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
      return nullptr;
    }
    const std::string path = fs::weakly_canonical(file.path, failed).string();
    if (failed) {
      return nullptr;
    }
    const auto [at, is_new] = files_.emplace(path, file);
    if (!is_new) {
      return &at->second;
    }
    const auto links = fs::hard_link_count(path, failed);
    if (failed || links < 2) {  // no other path without symbolic links leads to it
      return nullptr;
    }
    for (const auto& other : linked_) {
      if (fs::equivalent(other->first, path, failed)) {
        return &other->second;
      }
    }
    linked_.push_back(at);
    return nullptr;
  }

 private:
  using files_by_path = std::map<std::string, named_file>;  // paths without symbolic links
  files_by_path files_;
  std::vector<files_by_path::const_iterator> linked_;  // files with several names
};

/// Whether both paths lead to one file, which may not exist yet.
bool is_same_file(const std::string& a, const std::string& b) {
  file_list files;
  files.add({"", a});
  return files.add({"", b}) != nullptr;
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
  file_list files;
  for (const named_file& file : read) {
    files.add(file);
  }
  for (const named_file& file : written) {
    if (const named_file* const other = files.add(file)) {
      throw usage_error(file.option + " " + file.path + " would overwrite " + other->option + " " +
                        other->path);
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
