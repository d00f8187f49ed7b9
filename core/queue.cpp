#include <algorithm>
#include <utility>

#include <portile/core/queue.hpp>
#include <portile/core/queue_state.hpp>

namespace portile {
namespace detail {

struct event_state {
  std::shared_ptr<queue_state> queue;
  void* handle = nullptr;
  ~event_state() {
    char text[8];
    if (handle) queue->runtime->event_destroy(queue->where.ordinal(), handle, text, sizeof text);
  }
};

queue_state::~queue_state() {
  // Destructors cannot report; a failing release here means that the device is gone.
  char text[8];
  const int o = where.ordinal();
  if (arena || traps) runtime->stream_wait(o, stream, text, sizeof text);
  if (arena) runtime->release(o, arena, 0, text, sizeof text);
  for (void* p : retired_arenas) runtime->release(o, p, 0, text, sizeof text);
  if (traps) runtime->release(o, traps, 0, text, sizeof text);
  if (owns_stream && stream) runtime->stream_destroy(o, stream, text, sizeof text);
}

bool queue_state::capturing() const {
  std::int32_t c = 0;
  call(runtime->stream_capturing, where.ordinal(), stream, &c);
  return c != 0;
}

void* queue_state::workspace(std::uint64_t bytes) {
  const bool in_capture = capturing();
  if (bytes <= arena_bytes) {
    arena_captured = arena_captured || in_capture;
    return arena;
  }
  if (in_capture)
    throw error(status_code::capture_unsafe,
                "queue on " + where.text() + ": the workspace would grow to " + std::to_string(bytes) +
                    " bytes inside a capture: make a plan, or run once, before capturing");
  if (arena && arena_captured) {
    retired_arenas.push_back(arena);
  } else if (arena) {
    call(runtime->stream_wait, where.ordinal(), stream);  // earlier launches may still use it
    call(runtime->release, where.ordinal(), arena, 0);
  }
  arena = nullptr;
  arena_bytes = 0;
  arena_captured = false;
  call(runtime->allocate, where.ordinal(), bytes, 0, &arena);
  arena_bytes = bytes;
  return arena;
}

std::uint64_t* queue_state::next_trap(const op_info& op) {
  if (!properties.checked || op.traps.empty()) return nullptr;
  const bool in_capture = capturing();
  bool used[num_traps] = {};
  for (const pending_trap& p : pending) used[p.word] = true;
  int word = 0;
  while (word < num_traps && used[word]) ++word;
  if (word == num_traps) {
    const auto captured = [](const pending_trap& p) { return p.captured; };
    if (in_capture || std::all_of(pending.begin(), pending.end(), captured))
      throw error(status_code::capture_unsafe, "queue on " + where.text() +
                                                   ": more than 128 checked launches " +
                                                   (in_capture ? "in flight" : "in its graphs"));
    collect_traps();  // what it finds is kept for wait()
    return next_trap(op);
  }
  pending.push_back({&op, word, in_capture});
  return traps + word;
}

void queue_state::drop_trap(const std::uint64_t* word) {
  if (word) std::erase_if(pending, [&](const pending_trap& p) { return traps + p.word == word; });
}

void queue_state::collect_traps() {
  call(runtime->stream_wait, where.ordinal(), stream);
  if (pending.empty()) return;
  std::uint64_t words[num_traps];
  call(runtime->copy, where.ordinal(), stream, static_cast<void*>(words), static_cast<const void*>(traps),
       sizeof words);
  call(runtime->stream_wait, where.ordinal(), stream);
  call(runtime->fill, where.ordinal(), stream, static_cast<void*>(traps), 0xff, sizeof words);
  std::vector<pending_trap> kept;
  for (const pending_trap& p : pending) {
    if (!broken_op && words[p.word] != ~std::uint64_t{0}) {
      broken_op = p.op;
      broken_word = words[p.word];
    }
    if (p.captured) kept.push_back(p);
  }
  pending = std::move(kept);
}

void queue_state::wait() {
  if (where.kind() != device_kind::cpu && capturing())
    throw error(status_code::capture_unsafe, "queue on " + where.text() + ": wait inside a capture");
  collect_traps();
  if (const op_info* op = std::exchange(broken_op, nullptr)) {
    const std::size_t rule = broken_word & 255;
    throw data_error(op->name, rule < op->traps.size() ? op->traps[rule] : "unknown rule",
                     static_cast<std::int64_t>(broken_word >> 8));
  }
}

namespace {

// With a stream of its own, or the one given.
std::shared_ptr<queue_state> make_state(device where, queue_properties properties, bool own, void* stream) {
  auto s = std::make_shared<queue_state>();
  s->where = where;
  s->info = &where.info();
  s->runtime = &runtime_of(where);
  s->properties = properties;
  if (properties.num_sms < 0 || properties.num_sms > s->info->num_sms)
    throw error(status_code::invalid_argument, "queue: num_sms = " + std::to_string(properties.num_sms) +
                                                   ": must be 0 to " + std::to_string(s->info->num_sms));
  s->stream = stream;
  if (own) {
    call(s->runtime->stream_create, where.ordinal(), &s->stream);
    s->owns_stream = true;
  }
  if (properties.checked) {
    if (s->capturing())
      throw error(status_code::capture_unsafe,
                  "queue on " + where.text() + ": a checked queue cannot be made inside a capture");
    const std::uint64_t bytes = queue_state::num_traps * sizeof(std::uint64_t);
    void* p = nullptr;
    call(s->runtime->allocate, where.ordinal(), bytes, 0, &p);
    s->traps = static_cast<std::uint64_t*>(p);
    call(s->runtime->fill, where.ordinal(), s->stream, p, 0xff, bytes);
  }
  return s;
}

}  // namespace
}  // namespace detail

queue::queue(selector choose, queue_properties properties) : queue(choose(), properties) {}

queue::queue(device where, queue_properties properties)
    : state_(detail::make_state(where, properties, true, nullptr)) {}

queue queue::wrap(device where, void* native_stream, queue_properties properties) {
  return queue(detail::make_state(where, properties, false, native_stream));
}

device queue::get_device() const { return state_->where; }
void* queue::native_handle() const { return state_->stream; }
const queue_properties& queue::properties() const { return state_->properties; }

void queue::wait() {
  const std::lock_guard lock(state_->mutex);
  state_->wait();
}

event queue::record() {
  event e;
  e.state_ = std::make_shared<detail::event_state>();
  e.state_->queue = state_;
  detail::call(state_->runtime->event_create, state_->where.ordinal(), &e.state_->handle);
  detail::call(state_->runtime->event_record, state_->where.ordinal(), e.state_->handle, state_->stream);
  return e;
}

void event::wait() const {
  if (state_)
    detail::call(state_->queue->runtime->event_wait, state_->queue->where.ordinal(), state_->handle);
}

double event::milliseconds_since(const event& earlier) const {
  if (!state_ || !earlier.state_ || state_->queue->where != earlier.state_->queue->where)
    throw error(status_code::invalid_argument, "event: both must have been recorded on queues of one device");
  double ms = 0;
  detail::call(state_->queue->runtime->event_elapsed, state_->queue->where.ordinal(), earlier.state_->handle,
               state_->handle, &ms);
  return ms;
}

namespace {

void* allocate(std::size_t bytes, const queue& q, std::int32_t host) {
  void* p = nullptr;
  detail::call(q.state().runtime->allocate, q.get_device().ordinal(), static_cast<std::uint64_t>(bytes), host,
               &p);
  return p;
}
void release(void* p, const queue& q, std::int32_t host) {
  if (p) detail::call(q.state().runtime->release, q.get_device().ordinal(), p, host);
}

}  // namespace

void* malloc_device(std::size_t bytes, const queue& q) { return allocate(bytes, q, 0); }
void* malloc_host(std::size_t bytes, const queue& q) { return allocate(bytes, q, 1); }
void free(void* p, const queue& q) { release(p, q, 0); }
void free_host(void* p, const queue& q) { release(p, q, 1); }

void memcpy(queue& q, void* dst, const void* src, std::size_t bytes) {
  if (bytes)
    detail::call(q.state().runtime->copy, q.get_device().ordinal(), q.native_handle(), dst, src,
                 static_cast<std::uint64_t>(bytes));
}
void memset(queue& q, void* dst, int byte, std::size_t bytes) {
  if (bytes)
    detail::call(q.state().runtime->fill, q.get_device().ordinal(), q.native_handle(), dst,
                 std::int32_t{byte}, static_cast<std::uint64_t>(bytes));
}

}  // namespace portile
