"""The decode pass in C++, for the CPU.

`decode.cpp` is the pass; `matvec.h` multiplies a matrix in one of six formats with a vector, `attention.h` attends over
the cache, `crew.h` shares the work among threads, `vectors.h` computes with eight numbers at a time.
"""
