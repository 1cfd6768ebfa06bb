// What the kernels are called with: their own structs, in a namespace that no instruction set has.
#pragma once
#define RELATTN_SET called
#include "call.h"
#include "rotation.h"
#include "slot_heads.h"

using called::Call;
using called::Rotation;
