"""The decode pass in C++, for the CPU: `matvec.h` (W x in five formats), `attention.h`, `crew.h` (threads), `decode.cpp`."""
