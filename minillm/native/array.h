// Room for numbers of a size that is known only when the program runs.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "vectors.h"

// Memory that is written before it is read: to fill it with zeros first would take as long as a layer's norms. It begins where
// a line begins, so that no row of a tile lies in two.
template <class Item> class Array {
  public:
    explicit Array(size_t size) : items_(new (std::align_val_t(LINE)) Item[size]) {}
    Item& operator[](size_t i) { return items_[i]; }
    const Item& operator[](size_t i) const { return items_[i]; }

  private:
    struct Release {
        void operator()(Item* items) const { operator delete[](items, std::align_val_t(LINE)); }
    };
    std::unique_ptr<Item[], Release> items_;
};
