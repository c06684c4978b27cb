// A .pte file that `specdec export executorch` wrote, and what it says about itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "specdec/kv_layout.h"
#include "specdec/sampling.h"

namespace specdec {

// How the file was made; the keys of its metadata (`specdec_ref/export/executorch/metadata.py`).
struct ModelInfo {
  std::string name, precision, head_precision, tokenizer_sha256;
  std::string kit_version, executorch_version;
  std::int32_t vocab_size = 0;  // token ids that it takes
  std::int32_t head_rows = 0;   // width of the logits
  std::vector<Token> head_ids;  // empty: row r is token r
  std::int32_t context = 0;     // most positions
  std::int32_t layers = 0, kv_heads = 0, head_dim = 0;
  std::int32_t max_tokens = 0;  // of one pass
  std::int32_t max_rows = 0;    // of logits of one pass
};

// Threads that ExecuTorch computes with, for the whole process; call it before any model is opened.
void set_threads(std::int32_t threads);

// The file, mapped into memory. It must outlive the runners made from it.
class ExecuTorchModel {
 public:
  // Throws kBadFile if the file is missing, damaged, or not of this kit's making.
  explicit ExecuTorchModel(const std::string& path);
  ~ExecuTorchModel();
  ExecuTorchModel(const ExecuTorchModel&) = delete;
  ExecuTorchModel& operator=(const ExecuTorchModel&) = delete;

  const ModelInfo& info() const { return info_; }
  const std::string& path() const { return path_; }
  // The metadata as it stands in the file: JSON.
  const std::string& metadata() const { return metadata_; }
  // The cache that it needs, for at most `context` tokens (clipped to the model's own limit).
  ArenaSpec arena(const std::string& name, std::int32_t context) const;

 private:
  friend class ExecuTorchRunner;
  struct File;

  std::string path_;
  std::unique_ptr<File> file_;
  std::string metadata_;
  ModelInfo info_;
};

}  // namespace specdec
