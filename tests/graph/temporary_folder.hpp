// SPDX-License-Identifier: BSD-3-Clause
// A folder for the files of one test, removed with them.
#ifndef DETENT_TESTS_GRAPH_TEMPORARY_FOLDER_HPP
#define DETENT_TESTS_GRAPH_TEMPORARY_FOLDER_HPP

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

namespace test {

class temporary_folder {
 public:
  temporary_folder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() /
            ("detent_test_" + std::to_string(random()) + std::to_string(random()));
    std::filesystem::create_directory(path_);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Writes a file into the folder and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

  /// How many files and folders are in it.
  [[nodiscard]] std::size_t entries() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) {
      ++count;
    }
    return count;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_TEMPORARY_FOLDER_HPP
