// Faults planted in the kernels, to show that the tests on an emulated device would find them.
//
//   if (!mutated(Mutant::kSumWithoutBarrier)) __syncthreads();
//
// On a device mutated() is false at compile time and nothing is left of such a line.
#pragma once

#include <cstdint>

namespace tandem::cuda {

// name, what it does
#define TANDEM_MUTANT_LIST(X)                                                          \
  X(SumWithoutBarrier, "parts of a block's sum are read before all are there")         \
  X(SumsOverlap, "the next sum is written before all have read the last one")          \
  X(SumInOneWarp, "the first warp alone comes to a block's sum")                       \
  X(HalfShuffle, "lanes above a row's width stay away from the warp's sum")            \
  X(NormStride, "the norm's threads skip what lies beyond the first block")            \
  X(NormWidth, "the norm writes one number too many")                                  \
  X(MeanNotTaken, "the layer norm's variance is around zero")                          \
  X(EmbedAdapters, "rows without a token are embedded too")                            \
  X(RopeNeighbours, "neighbouring dimensions are rotated together")                    \
  X(StoreInOrder, "keys are stored by row number instead of slot")                     \
  X(GateRows, "up is read where the next row's gate lies")                             \
  X(SoftenWithoutBarrier, "weights are made before all scores are there")              \
  X(WeighWithoutBarrier, "values are added before all weights are there")              \
  X(SumsWithoutBarrier, "the warps' sums are added before all are there")              \
  X(PassesOverlap, "the next queries' sums are written before all have read the last") \
  X(NotRescaled, "splits are merged as if they had the same largest score")            \
  X(NoWindow, "a layer's window is ignored")                                           \
  X(SeeNext, "a row sees the key behind its last dense one")                           \
  X(NoExtra, "a row of a tree sees the dense rows alone")                              \
  X(HeadsInTurn, "query heads take the key heads in turn, not by groups")              \
  X(FirstTable, "all rows read the first sequence's page table")                       \
  X(PageStride, "pages are as far apart as if they had a head more")                   \
  X(DistanceTurned, "scores are biased by the distance the other way round")           \
  X(TailOfHead, "numbers behind a head are written too")                               \
  X(PromptsCut, "a window cuts prompts off")                                           \
  X(OneDirection, "overlapping rows are moved first to last always")                   \
  X(MovesAtOnce, "a block for each move, in any order")                                \
  X(AllLayers, "moves go through all layers")                                          \
  X(ReadTies, "of equal logits the last one wins")                                     \
  X(ReadNan, "a row with NaN or +Inf is answered")                                     \
  X(ReadVocab, "the best may lie behind the tokens that are asked for")                \
  X(ReadBestEarly, "warps' best tokens are compared before all are there")             \
  X(ReadBestOverlap, "the next best are written before all have read the last")        \
  X(ReadLanesOverlap, "the next lanes are written before the last are joined")         \
  X(ReadLanesTurned, "lanes of a sum are joined in another order")                     \
  X(RaceKeyTurned, "a draw takes the words of its key the other way round")            \
  X(ChooseAlways, "rows with a token of their own are fed another's")                  \
  X(ChooseBest, "the best token is fed whatever was chosen")                           \
  X(ChooseInvalid, "a token is taken from an answer that is none")                     \
  X(ProductTail, "a product reads rows behind their last number")                      \
  X(ProductRows, "a product reads rows that there are not")                            \
  X(ProductStride, "tiles of weights are as far apart as if they had a step more")     \
  X(ProductHalves, "the halves of a step meet the other one's weights")                \
  X(ProductWithoutBarrier, "sums are added before all warps have left theirs")         \
  X(ProductOneBuffer, "the next tile's sums are written over those still read")        \
  X(ProductOrder, "the warps' sums are added last to first")                           \
  X(ProductColumns, "columns behind the last are written")                             \
  X(ProductFirstTile, "a block takes one tile, whatever the grid")                     \
  X(ProductScale, "all rows are normed as the first one")                              \
  X(ProductWeightOfNorm, "rows are scaled but not weighted")                           \
  X(ProductBias, "what is gated gets the gate's bias")                                 \
  X(PackInOrder, "what is gated is packed behind the gates, not beside them")          \
  X(BlocksHalves, "the low and the high codes of a byte change places")                \
  X(BlocksZero, "codes are taken as they are, without their zero")                     \
  X(BlocksMin, "what a block's numbers are less by is forgotten")                      \
  X(BlocksOuts, "a tile's last eight outs get the scales of the first")                \
  X(BlocksTail, "a step is summed to its end, also behind the last input")             \
  X(BlocksRows, "the second tile of rows gets the scales of the first")                \
  X(BlocksRounded, "numbers of a row are cut off, not rounded")                        \
  X(BlocksOfARow, "a row has the scale of its first 32 numbers")                       \
  X(BlocksNan, "rows of NaN become zeros")                                             \
  X(BlocksUpper, "two registers change their codes' upper bits")                       \
  X(BlocksSixteens, "the last 16 inputs of a group get the scale of the first")        \
  X(BlocksStride, "rows of a result are as far apart as a part of it is wide")         \
  X(BlocksUnweighted, "rows are normed but not weighted before they are rounded")      \
  X(UnpackInTiles, "rows are unpacked in the order in which tiles have them")          \
  X(NoWait, "a kernel goes on before the launch before it is done")

enum class Mutant : uint8_t {
  kNone,
#define TANDEM_MUTANT(name, what) k##name,
  TANDEM_MUTANT_LIST(TANDEM_MUTANT)
#undef TANDEM_MUTANT
};

}  // namespace tandem::cuda
