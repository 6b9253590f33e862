// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a file before it is written: texts, and elements of tensors that stay where they
// are, so that a file takes no memory beside the tensors in it.
#ifndef DETENT_GRAPH_MODEL_FILE_PIECES_HPP
#define DETENT_GRAPH_MODEL_FILE_PIECES_HPP

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Bytes in their order, in pieces. Not thread-safe.
class file_pieces {
 public:
  /// Adds the bytes of a text.
  void add(const std::string& text) {
    if (pieces_.empty() || pieces_.back().elements.has_data()) {
      pieces_.emplace_back();
    }
    pieces_.back().text += text;
    size_ += text.size();
  }
  /// Adds the bytes of the elements of a tensor, which must have some.
  void add(tensor elements) {
    size_ += elements.bytes();
    pieces_.push_back({{}, std::move(elements)});
  }
  /// Adds the bytes of other pieces.
  void add(file_pieces other) {
    size_ += other.size_;
    pieces_.insert(pieces_.end(), std::make_move_iterator(other.pieces_.begin()),
                   std::make_move_iterator(other.pieces_.end()));
  }
  /// Adds bytes of value 0 until size() is a multiple of `multiple`.
  void fill_up(std::size_t multiple) {
    add(std::string(static_cast<std::size_t>((multiple - size_ % multiple) % multiple), '\0'));
  }

  /// The number of all bytes.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Calls write(bytes, size) for each piece, in order. Pages of tensors that are views of files
  /// are released when they are written.
  template <class Write>
  void write(const Write& write) const {
    for (const piece& p : pieces_) {
      if (p.elements.has_data()) {
        write(reinterpret_cast<const char*>(p.elements.raw()), p.elements.bytes());
        release_pages(p.elements);
      } else {
        write(p.text.data(), p.text.size());
      }
    }
  }

 private:
  /// A text, or the elements of a tensor.
  struct piece {
    std::string text;
    tensor elements;
  };

  std::vector<piece> pieces_;
  std::uint64_t size_ = 0;
};

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_FILE_PIECES_HPP
