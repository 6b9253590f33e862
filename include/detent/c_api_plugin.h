/* SPDX-License-Identifier: BSD-3-Clause */
/** @file
 * The interface of plugins: shared libraries with observers of their own, which the command line
 * tool loads (`detent quantize --plugin libmine.so --method mine`).
 *
 * A plugin is written in C, or in any language with its calling convention. It needs this header
 * and c_api_observers.h, and is linked with nothing. It exports one function, detent_plugin_get(),
 * which describes it; examples/09_observer_plugin.c is a whole plugin.
 *
 * Functions return 0 on success. On failure they return another number and write the reason to
 * `error`: a text of at most `capacity` bytes with its terminating zero, in UTF-8, without line
 * ends. The tool shows it with the names of the library and of the observer. Functions must not
 * throw C++ exceptions and must not end the process.
 *
 * Threads: functions may be called by several threads at once, with different states.
 */
#ifndef DETENT_C_API_PLUGIN_H
#define DETENT_C_API_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include <detent/c_api_observers.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The version of this interface. It changes only if plugins that were compiled before no longer
 * work; fields that come later are appended to structures, which state their sizes. */
#define DETENT_PLUGIN_VERSION 1

/** Exports detent_plugin_get() from a plugin. */
#if defined(_WIN32)
#define DETENT_PLUGIN_EXPORT __declspec(dllexport)
#else
#define DETENT_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/** What an observer has found: a range, or a scale with its zero point. The tool sets the size, and
 * all else to 0, before finalize is called. */
typedef struct detent_plugin_result {
  size_t size; /**< Size of the structure in bytes. */
  float scale; /**< The scale, positive and finite; 0: scale and zero point follow from the range,
                  as in detent_params_from_range(). */
  int32_t zero_point; /**< The zero point, on the grid of the scheme; counts if scale is not 0. */
  float lower,        /**< Least value of the range, finite; counts if scale is 0. */
      upper;          /**< Greatest value of the range, finite and not below lower. */
  double objective;   /**< What the method minimizes, for reports. */
} detent_plugin_result;

/** An observer of a plugin: its name, and the functions that work on its states. A state is what
 * the observer knows of one tensor. */
typedef struct detent_plugin_observer {
  size_t size;      /**< sizeof(detent_plugin_observer). */
  const char* name; /**< The name for --method; not that of an observer of the library. */
  size_t phases;    /**< Passes over the data that the observer needs, 1 or 2. */
  /** Makes a state that has seen nothing. `options` holds the scheme, the percentile and so on; it
   * is valid during the call. */
  int (*create)(const detent_observer_options* options, void** state, char* error, size_t capacity);
  /** Makes a copy of a state, with all that it has seen. */
  int (*copy)(const void* state, void** copy, char* error, size_t capacity);
  /** Frees a state. */
  void (*destroy)(void* state);
  /** Announces that pass `phase`, counted from 0, begins. It may be null if phases is 1. */
  int (*begin_phase)(void* state, size_t phase, char* error, size_t capacity);
  /** Sees a batch: `count` values of one tensor, at least 1, in row-major order and all finite. In
   * the second phase the same batches come in the same order as in the first. */
  int (*observe)(void* state, const float* values, size_t count, char* error, size_t capacity);
  /** Makes `state` what it would be if it had also seen all that `other` has seen. It may be null
   * if the observer cannot do that. */
  int (*merge)(void* state, const void* other, char* error, size_t capacity);
  /** Computes the result of all that was observed, which is at least one value. */
  int (*finalize)(const void* state, detent_scheme scheme, detent_plugin_result* result,
                  char* error, size_t capacity);
} detent_plugin_observer;

/** A plugin: the observers that it has. All that it points to stays valid forever. */
typedef struct detent_plugin {
  size_t size;                                    /**< sizeof(detent_plugin). */
  int32_t version;                                /**< DETENT_PLUGIN_VERSION. */
  size_t observer_count;                          /**< Number of observers. */
  const detent_plugin_observer* const* observers; /**< The observers. */
} detent_plugin;

/** The type of detent_plugin_get(), by which the tool finds out what a plugin has. It is called
 * once, and returns null on failure. */
typedef const detent_plugin* (*detent_plugin_entry)(void);

/** The function that a plugin defines and exports. */
DETENT_PLUGIN_EXPORT const detent_plugin* detent_plugin_get(void);

#ifdef __cplusplus
}
#endif

#endif /* DETENT_C_API_PLUGIN_H */
