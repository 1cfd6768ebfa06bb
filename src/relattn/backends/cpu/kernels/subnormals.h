// Numbers below 2^-126 count as 0 on this thread while an object of this class exists. Processors take a hundred times
// longer with them. Weights far from the query, such as ALiBi's, make many of them.
#pragma once
#include <cstdint>

#if defined(__x86_64__)

class WithoutSubnormals {
 public:
  WithoutSubnormals() : caller_mode(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(caller_mode | RESULTS | OPERANDS);
  }
  ~WithoutSubnormals() { __builtin_ia32_ldmxcsr(caller_mode); }

 private:
  static constexpr unsigned RESULTS = 0x8000, OPERANDS = 0x40;
  const unsigned caller_mode;
};

#elif defined(__aarch64__)

class WithoutSubnormals {
 public:
  WithoutSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(caller_mode));
    asm volatile("msr fpcr, %0" : : "r"(caller_mode | BOTH));
  }
  ~WithoutSubnormals() { asm volatile("msr fpcr, %0" : : "r"(caller_mode)); }

 private:
  static constexpr uint64_t BOTH = 0x1000000;
  uint64_t caller_mode;
};

#else

class WithoutSubnormals {};

#endif
