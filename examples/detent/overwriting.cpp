// SPDX-License-Identifier: BSD-3-Clause
#include "overwriting.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif

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

/// The file that a path leads to, in a form that all paths to it share: its number in the file
/// system or, if it does not exist yet or the system has no such numbers, its path without symbolic
/// links. Empty for folders and devices, and for what cannot be a path.
std::string identity_of(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return {};  // refused where it is opened
  }
  std::error_code failed;
  fs::path file = fs::absolute(path, failed);
  // A link to nothing names the file that writing would make.
  for (int links = 0;
       links < 40 && fs::is_symlink(fs::symlink_status(file, failed)) && !fs::exists(file, failed);
       ++links) {
    file = file.parent_path() / fs::read_symlink(file, failed);
  }
  const fs::file_status status = fs::status(file, failed);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return {};
  }
#if defined(__unix__) || defined(__APPLE__)
  struct stat numbers {};
  if (::stat(file.c_str(), &numbers) == 0) {
    return "number " + std::to_string(numbers.st_dev) + " " + std::to_string(numbers.st_ino);
  }
#endif
  const fs::path resolved = fs::weakly_canonical(file, failed);
  return failed ? std::string() : "path " + resolved.string();
}

/// Files by their identity. A model may have very many outputs, so that files are not compared with
/// each other one by one.
class file_list {
 public:
  /// Adds a file, which may not exist yet, unless it is here under this or another name. Returns
  /// the file that is here then, otherwise null. What is returned is valid as long as the list.
  const named_file* add(const named_file& file) {
    const std::string identity = identity_of(file.path);
    if (identity.empty()) {
      return nullptr;
    }
    const auto [at, is_new] = files_.emplace(identity, file);
    return is_new ? nullptr : &at->second;
  }

 private:
  std::map<std::string, named_file> files_;
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
