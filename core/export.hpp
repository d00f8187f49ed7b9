#pragma once
// Symbols are hidden by default; what libportile exports carries this mark.
#if defined(_WIN32)
#define PORTILE_API
#else
#define PORTILE_API __attribute__((visibility("default")))
#endif
