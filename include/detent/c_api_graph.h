/* SPDX-License-Identifier: BSD-3-Clause */
/** @file
 * The C interface of the graph part: reads ONNX models, quantizes them as a text in JSON or YAML
 * says, runs them on the integer kernels, writes them.
 *
 * Link the CMake target detent::graph_c (the library detent_graph_c, which brings detent_c along).
 * What c_api.h states of errors, threads, structures and aliasing holds here, too.
 *
 * Threads: models are constant; many threads may use one. One thread at a time may use a session;
 * detent_session_share() makes another one for another thread, which shares the packed weights.
 */
#ifndef DETENT_C_API_GRAPH_H
#define DETENT_C_API_GRAPH_H

#include <detent/c_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An ONNX model. Constant after it was made. */
typedef struct detent_model detent_model;

/** Limits for models, which bound what hostile files and inputs may take. */
typedef struct detent_graph_limits {
  size_t size;                /**< Size of the structure in bytes, set by the _init function. */
  size_t max_constant_bytes;  /**< All constants of a file together, in bytes. */
  size_t max_tensor_bytes;    /**< One output of a node, in bytes. */
  size_t max_nodes;           /**< Nodes of a file, those of sub-graphs included. */
  size_t max_memory_bytes;    /**< Values that nodes compute in a run, at a time, in bytes. */
  size_t max_iterations;      /**< Iterations of all loops of a run together. */
  uint64_t max_multiply_adds; /**< Multiplications with additions of a run, about. */
  size_t max_constant_tensor_bytes; /**< One constant of a file, in bytes. */
} detent_graph_limits;
/** Sets the size and the defaults: 64 GiB of constants, 2 GiB an output, a million nodes, 16 GiB of
 * values, 2^24 iterations, any number of multiplications, 16 GiB a constant. `limits` must not be
 * null. */
DETENT_C_API void detent_graph_limits_init(detent_graph_limits* limits);

/** Reads a model and its external data, which lies beside it, from a file. `path` is a
 * null-terminated name in the encoding of the system. `limits` may be null. On success, `*model` is
 * a new object, to be freed with detent_model_free(). DETENT_INVALID_ARGUMENT for null, DETENT_IO
 * for a file that cannot be read, DETENT_BAD_FILE for one that is damaged, contradicts itself,
 * exceeds the limits or needs more memory than there is, DETENT_UNSUPPORTED for what is valid but
 * unknown here. */
DETENT_C_API detent_status detent_model_read(const char* path, const detent_graph_limits* limits,
                                             detent_model** model);
/** Reads a model from `size` bytes in memory. DETENT_BAD_FILE for one with external data; other
 * errors are those of detent_model_read(). */
DETENT_C_API detent_status detent_model_parse(const void* bytes, size_t size,
                                              const detent_graph_limits* limits,
                                              detent_model** model);
/** Frees a model; does nothing for null. Sessions of it stay valid. */
DETENT_C_API void detent_model_free(detent_model* model);
/** Writes a model to a file, which is replaced only when all is written. DETENT_IO if that fails.
 */
DETENT_C_API detent_status detent_model_write(const detent_model* model, const char* path);
/** Serializes a model to the bytes of an ONNX file. Sets `*needed` to their number. If `capacity`
 * is at least that, writes them to `buffer`; otherwise writes nothing (`buffer` may be null then)
 * and returns DETENT_OK all the same. DETENT_UNSUPPORTED for a model of 2 GiB and more, which such
 * a file cannot hold: detent_model_write() writes two files then. */
DETENT_C_API detent_status detent_model_serialize(const detent_model* model, void* buffer,
                                                  size_t capacity, size_t* needed);

/** What a model declares of an input or an output. */
typedef struct detent_value_info {
  size_t size;          /**< Size of the structure in bytes, set by the _init function. */
  const char* name;     /**< Name; valid as long as the model. */
  detent_type type;     /**< Type of the elements; DETENT_NO_TYPE if undeclared or not supported. */
  int has_shape;        /**< 1 if a shape is declared, else 0. */
  size_t rank;          /**< Number of dimensions. */
  const int64_t* shape; /**< Extents, -1 for an open one; valid as long as the model. */
} detent_value_info;
/** Sets the size, and all else to 0. `info` must not be null. */
DETENT_C_API void detent_value_info_init(detent_value_info* info);
/** Number of inputs; 0 for null. */
DETENT_C_API size_t detent_model_input_count(const detent_model* model);
/** Number of outputs; 0 for null. */
DETENT_C_API size_t detent_model_output_count(const detent_model* model);
/** Describes the input with that index. DETENT_INVALID_ARGUMENT for null and an index that is too
 * large. */
DETENT_C_API detent_status detent_model_input(const detent_model* model, size_t index,
                                              detent_value_info* info);
/** Describes the output with that index, as detent_model_input() does. */
DETENT_C_API detent_status detent_model_output(const detent_model* model, size_t index,
                                               detent_value_info* info);

/** A dense row-major tensor. 4-bit types have two elements to a byte, as in c_api.h. */
typedef struct detent_tensor {
  size_t size;          /**< Size of the structure in bytes, set by the _init function. */
  detent_type type;     /**< Type of the elements. */
  size_t rank;          /**< Number of dimensions; 0 for a single value. */
  const int64_t* shape; /**< Extents, none negative; may be null if rank is 0. */
  const void* data;     /**< The elements; may be null if there are none. */
  size_t bytes;         /**< Size of the elements in bytes, as type and shape make it. */
} detent_tensor;
/** Sets the size, and all else to 0. `tensor` must not be null. */
DETENT_C_API void detent_tensor_init(detent_tensor* tensor);

/** Called while a model is being quantized, on the thread of the call: `step` says what is done
 * (valid during the call), `done` and `total` count its parts, `total` 0 if it is not counted.
 * Returns 0 to go on; any other value ends the call with DETENT_CANCELLED. */
typedef int (*detent_progress)(void* user, const char* step, size_t done, size_t total);

/** What detent_model_quantize() has done. */
typedef struct detent_quantize_outcome {
  size_t size;   /**< Size of the structure in bytes, set by the _init function. */
  size_t layers; /**< Number of quantized layers. 0: no layer was; other nodes may be simplified. */
  size_t activations; /**< Number of activations with parameters of their own (static). */
  size_t not_run;     /**< Nodes that stay in float because they could not be run (static). */
  int bias_correction_taken_back; /**< 1 if correcting biases made the outputs worse, else 0. */
} detent_quantize_outcome;
/** Sets the size, and all else to 0. `outcome` must not be null. */
DETENT_C_API void detent_quantize_outcome_init(detent_quantize_outcome* outcome);

/** How detent_model_quantize() runs. */
typedef struct detent_quantize_options {
  size_t size;                       /**< Size of the structure in bytes, set by _init. */
  const detent_graph_limits* limits; /**< Limits of the runs; null means the defaults. */
  const detent_parallel* parallel;   /**< The caller's threads; null: the calling thread. */
  detent_progress progress;          /**< Null, or a function that is told of the progress. */
  void* user;                        /**< Passed to progress; the library does not look at it. */
  detent_quantize_outcome* outcome;  /**< Null, or an initialized structure to be filled. */
} detent_quantize_options;
/** Sets the size, and all else to null. `options` must not be null. */
DETENT_C_API void detent_quantize_options_init(detent_quantize_options* options);

/** Quantizes a model. `text` is `text_size` bytes of JSON or YAML with the options of the command
 * `detent quantize` by their names (approach, format, method, bits, weight-algorithm, ...) and the
 * sections ignored, operators and tensors, in the form of examples/quantize.yaml; options about
 * files, threads, samples, pipelines of other tools and goals of accuracy are not for it. Layers
 * that cannot be quantized stay as they are, also all of them; options->outcome tells how many are
 * quantized. An empty text means the defaults of the command: static quantization to QDQ with
 * scales for each channel and the search of `method: auto`. `samples` has sample_count *
 * detent_model_input_count() calibration tensors: all inputs of the first run, in the order of the
 * model, then those of the second one, and so on; the library copies what it keeps. It may be null
 * if sample_count is 0 and the approach needs none. A model of float16 or bfloat16 computes in
 * float32 afterwards, with inputs and outputs of the types that it had, if all its operators are
 * known (graph/rewrite/widen_floats.hpp). `options` may be null. On success, `*result` is a new
 * model, to be freed with detent_model_free(). DETENT_INVALID_ARGUMENT for null, a text that is
 * wrong (the message has the line), and samples that are missing or of another type than the model
 * declares; DETENT_SHAPE_MISMATCH for tensors whose bytes do not fit their shape, or whose shape
 * does not fit the model; DETENT_BAD_FILE if a run exceeds the limits; DETENT_CANCELLED if the
 * progress function said so. */
DETENT_C_API detent_status detent_model_quantize(const detent_model* model, const char* text,
                                                 size_t text_size, const detent_tensor* samples,
                                                 size_t sample_count,
                                                 const detent_quantize_options* options,
                                                 detent_model** result);

/** A model that is ready to run. The first run packs the weights; later ones reuse them, and
 * memory. */
typedef struct detent_session detent_session;

/** Makes a session. Quantized parts of the model become integer operators, as in the command
 * `detent run`, so that results have its bits. `limits` (defaults) and `parallel` (the calling
 * thread) may be null; the functions of `parallel` are called by all runs, so `user` must stay
 * valid. On success, `*session` is a new object, to be freed with detent_session_free().
 * DETENT_UNSUPPORTED for a model with operators that are unknown here. Constants that follow from
 * others are computed here, before `limits` hold: within 64 MiB, eight times the model's constants
 * and 2^30 multiply-adds. */
DETENT_C_API detent_status detent_session_create(const detent_model* model,
                                                 const detent_graph_limits* limits,
                                                 const detent_parallel* parallel,
                                                 detent_session** session);
/** Makes another session of the same model, which shares constants and packed weights with
 * `session` and may be used by another thread at the same time. */
DETENT_C_API detent_status detent_session_share(const detent_session* session,
                                                const detent_graph_limits* limits,
                                                const detent_parallel* parallel,
                                                detent_session** shared);
/** Frees a session; does nothing for null. Shared sessions and results stay valid. */
DETENT_C_API void detent_session_free(detent_session* session);

/** The outputs of a run. */
typedef struct detent_results detent_results;

/** Runs the model. `inputs` has `input_count` tensors, one for each input in the order of the
 * model; the library copies them. On success, `*results` is a new object with the outputs, to be
 * freed with detent_results_free(). DETENT_INVALID_ARGUMENT for null, another number of inputs and
 * inputs of another type than the model declares; DETENT_SHAPE_MISMATCH for shapes that do not
 * fit; DETENT_BAD_FILE for a model that exceeds the limits or needs more memory than there is (the
 * message names the node). The session may be used again after an error. */
DETENT_C_API detent_status detent_session_run(detent_session* session, const detent_tensor* inputs,
                                              size_t input_count, detent_results** results);
/** Number of outputs; 0 for null. */
DETENT_C_API size_t detent_results_count(const detent_results* results);
/** Describes the output with that index; shape and data are valid as long as `results`.
 * DETENT_INVALID_ARGUMENT for null and an index that is too large, DETENT_UNSUPPORTED for an output
 * of strings. */
DETENT_C_API detent_status detent_results_tensor(const detent_results* results, size_t index,
                                                 detent_tensor* tensor);
/** Frees results; does nothing for null. */
DETENT_C_API void detent_results_free(detent_results* results);

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_GRAPH_H */
