// A table of losses (losses/dominating_pair.h) on a grid, tilted: certainly less private, and certainly more.
//
//   Less private: the dots are connected. A mass between two grid points is split so that P and Q keep their totals.
//   More private: neighbours are merged into one outcome of loss log(P/Q), up to the share of the last one that puts
//     this loss on a grid point exactly (an outcome may be told apart at random). So a merged outcome errs by a
//     variance and not by a step of the mesh.
#pragma once

#include "accountant/grid/pld_cells.h"
#include "accountant/losses/dominating_pair.h"

namespace ghostshard::accountant {

TiltedCells less_private_table(const LossAtoms& atoms, const GridShape& shape);
TiltedCells more_private_table(const LossAtoms& atoms, const GridShape& shape);

}  // namespace ghostshard::accountant
