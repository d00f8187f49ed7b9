/* The tables between libportile and a backend plug-in. Plain C, versioned: a plug-in whose version or sizes
 * differ is refused with a reason. Functions return a portile status code (0 = ok) and write a sentence into
 * `text` (size `text_size`) when they fail. */
#ifndef PORTILE_ABI_H
#define PORTILE_ABI_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PORTILE_ABI_VERSION 1u
#define PORTILE_BACKEND_SYMBOL "portile_backend_entry"

enum { PORTILE_DEVICE_CPU = 0, PORTILE_DEVICE_CUDA = 1, PORTILE_DEVICE_HIP = 2, PORTILE_DEVICE_SYCL = 3 };

typedef struct portile_device_info {
  int32_t kind;
  int32_t ordinal;
  char name[96];
  char arch[32];       /* "sm_90", "gfx942", "x86_64" */
  uint64_t aspects;    /* bit i = portile::aspect i */
  uint64_t memory;     /* bytes */
  int32_t num_sms;     /* multiprocessors or compute units */
  int32_t wave_size;   /* lanes that run in step */
  int32_t max_shared;  /* bytes of shared memory a block may ask for */
  int32_t max_threads; /* threads of a block */
} portile_device_info;

/* What a launch gets besides its problem. All memory in it belongs to the caller. */
typedef struct portile_launch {
  const portile_device_info* device;
  void* stream;    /* native stream, null on the cpu */
  void* workspace; /* at least what workspace() asked for, 256-byte aligned */
  uint64_t workspace_bytes;
  uint64_t* trap;     /* checked queue: device word that starts as all ones and takes the minimum of
                         index * 256 + rule; null otherwise */
  int32_t num_sms;    /* how many multiprocessors the launch may fill; 0 = all */
  int32_t pdl;        /* programmatic dependent launch wanted */
  int64_t max_blocks; /* upper bound of the grid, for tests; 0 = none */
} portile_launch;

typedef struct portile_implementation {
  const char* op;   /* "quant.per_token_cast" */
  const char* name; /* "cuda.simt" */
  int32_t device_kind;
  int32_t reserved;
  const char* archs;     /* comma separated list of the architectures it was built for; "any" */
  uint64_t problem_size; /* sizeof the problem struct it was compiled with */
  /* 1: yes. 0: no, with the reason. Pure: looks at metadata only, touches no device. */
  int32_t (*supports)(const portile_device_info* device, const void* problem, char* text, size_t text_size);
  int32_t (*workspace)(const portile_device_info* device, const void* problem, uint64_t* bytes);
  /* Neither allocates, nor synchronises, nor loads modules (cpu implementations return when done). */
  int32_t (*launch)(const portile_launch* launch, const void* problem, char* text, size_t text_size);
} portile_implementation;

/* Run-time functions of one kind of device. `device` is the ordinal; the current device of the calling thread
 * is the same before and after each call. */
typedef struct portile_runtime {
  uint64_t size; /* sizeof(portile_runtime) */
  int32_t (*allocate)(int32_t device, uint64_t bytes, int32_t host, void** out, char* text, size_t text_size);
  int32_t (*release)(int32_t device, void* p, int32_t host, char* text, size_t text_size);
  int32_t (*copy)(int32_t device, void* stream, void* dst, const void* src, uint64_t bytes, char* text,
                  size_t text_size);
  int32_t (*fill)(int32_t device, void* stream, void* dst, int32_t byte, uint64_t bytes, char* text,
                  size_t text_size);
  int32_t (*stream_create)(int32_t device, void** stream, char* text, size_t text_size);
  int32_t (*stream_destroy)(int32_t device, void* stream, char* text, size_t text_size);
  int32_t (*stream_wait)(int32_t device, void* stream, char* text, size_t text_size);
  int32_t (*stream_capturing)(int32_t device, void* stream, int32_t* capturing, char* text, size_t text_size);
  int32_t (*event_create)(int32_t device, void** event, char* text, size_t text_size);
  int32_t (*event_destroy)(int32_t device, void* event, char* text, size_t text_size);
  int32_t (*event_record)(int32_t device, void* event, void* stream, char* text, size_t text_size);
  int32_t (*event_wait)(int32_t device, void* event, char* text, size_t text_size);
  int32_t (*event_elapsed)(int32_t device, void* from, void* to, double* milliseconds, char* text,
                           size_t text_size);
} portile_runtime;

typedef struct portile_backend {
  uint32_t abi_version;      /* PORTILE_ABI_VERSION, first member for ever */
  uint32_t size;             /* sizeof(portile_backend) */
  uint32_t device_info_size; /* sizeof of the tables above, checked before use */
  uint32_t launch_size;
  uint32_t implementation_size;
  uint32_t tensor_size; /* sizeof(portile::tensor) */
  const char* name;     /* "reference", "cuda", "hip" */
  const char* version;
  int32_t device_kind; /* of the devices below and of the device models it knows */
  int32_t num_devices;
  const portile_device_info* devices;
  const char* no_device_reason;   /* why num_devices is 0; null where that is normal */
  const portile_runtime* runtime; /* null: the backend brings no devices of its own */
  uint64_t num_implementations;
  const portile_implementation* const* implementations; /* per op, best first */
} portile_backend;

typedef struct portile_host {
  uint32_t abi_version;
  uint32_t size;
  void (*log)(const char* channel, const char* text);
} portile_host;

/* The one exported symbol of a plug-in. */
typedef int32_t (*portile_backend_entry_fn)(const portile_host* host, const portile_backend** backend,
                                            char* text, size_t text_size);

#ifdef __cplusplus
}
#endif
#endif
