"""The decode pass in C++, for the CPU: `matvec.h` (W x in many formats), `attention.h`, `crew.h`, `decode.cpp`."""
