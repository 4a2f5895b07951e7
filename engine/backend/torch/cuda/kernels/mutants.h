// Mutations of the kernels, to show that the tests on the emulated device detect such faults.
//
//   if (!mutated(Mutant::kSumWithoutBarrier)) __syncthreads();
//
// On a device mutated() is false at compile time, so such lines are removed.
#pragma once

#include <cstdint>

namespace tandem::cuda {

// name, effect
#define TANDEM_MUTANT_LIST(X)                                                                     \
  X(SumWithoutBarrier, "a block's partial sums are read without a barrier")                       \
  X(SumsOverlap, "the next block sum is written before all threads have read the last one")       \
  X(SumInOneWarp, "only the first warp takes part in a block sum")                                \
  X(HalfShuffle, "lanes beyond a row's width skip the warp sum")                                  \
  X(NormStride, "the norm's threads skip elements beyond the first kThreads")                     \
  X(NormWidth, "the norm writes one element too many")                                            \
  X(MeanNotTaken, "the layer norm's variance is computed around zero")                            \
  X(EmbedAdapters, "rows without a token are embedded too")                                       \
  X(RopeNeighbours, "adjacent dimensions are rotated together")                                   \
  X(StoreInOrder, "keys are stored at the row number instead of the slot")                        \
  X(RopeTail, "threads past a row's last pair continue in the next row")                          \
  X(GateRows, "`up` is read at the next row's gate")                                              \
  X(Fp8WithoutBarrier, "the warps' maxima are compared without a barrier")                        \
  X(Fp8Truncated, "rows are truncated to fp8 instead of rounded")                                 \
  X(Fp8Most, "elements beyond the first kThreads do not count for the maximum")                   \
  X(Fp8FirstScale, "every row's scale is stored as that of the first")                            \
  X(SoftmaxWithoutBarrier, "softmax weights are computed without a barrier after the scores")     \
  X(WeighWithoutBarrier, "values are added without a barrier after the weights")                  \
  X(SumsWithoutBarrier, "the warps' sums are added without a barrier")                            \
  X(PassesOverlap, "the next pass's sums are written before all threads have read the last ones") \
  X(NotRescaled, "splits are merged as if they had the same maximum")                             \
  X(NoWindow, "a layer's window is ignored")                                                      \
  X(SeeNext, "a row sees the key after its last dense one")                                       \
  X(NoExtra, "a row of a tree sees only dense keys")                                              \
  X(HeadsInTurn, "query heads are assigned to key heads round-robin, not by groups")              \
  X(FirstTable, "all rows use the first sequence's page table")                                   \
  X(PageStride, "the page stride is one head too large")                                          \
  X(DistanceTurned, "the distance bias has the wrong sign of distance")                           \
  X(TailOfHead, "elements past the end of a head are written")                                    \
  X(PlacesWithoutBarrier, "keys are loaded without a barrier after the look-up of their places")  \
  X(PlainAlways, "all rows of a block have the places of the first one")                          \
  X(PartsOfAllRows, "a later slice writes its parts at the numbers of all rows")                  \
  X(MergeWithoutBarrier, "sums are merged without a barrier after the weights")                   \
  X(MergeOverlap, "the next splits' weights overwrite those still being read")                    \
  X(MergeFirst, "splits past the first kMergeThreads are not merged")                             \
  X(MergeFirstRows, "every slice writes the first rows")                                          \
  X(PromptsCut, "a window cuts off prompts")                                                      \
  X(OneDirection, "overlapping rows are always moved first to last")                              \
  X(MovesAtOnce, "moves run in separate blocks, in any order")                                    \
  X(AllLayers, "moves affect all layers")                                                         \
  X(GatherFirstTable, "rows are gathered by the first sequence's page table")                     \
  X(GatherFirstHeads, "the first heads are gathered for each group of heads")                     \
  X(GatherKeysTwice, "keys are gathered as values")                                               \
  X(ReadTies, "of equal logits the last one wins")                                                \
  X(ReadNan, "a row with NaN or +Inf gets an answer")                                             \
  X(ReadVocab, "the best token may be outside the requested vocabulary")                          \
  X(ReadBestEarly, "the warps' best tokens are compared without a barrier")                       \
  X(ReadBestOverlap,                                                                              \
    "the next best tokens are written before all threads have read the last ones")                \
  X(ReadLanesOverlap, "the next lanes are written before the last ones are added")                \
  X(ReadLanesTurned, "lanes of a sum are added in reverse order")                                 \
  X(RaceKeyTurned, "sampling swaps the words of its key")                                         \
  X(ReadUnchanged, "a row is read without a barrier after its changes")                           \
  X(ReadDraftsEarly, "drafts are read without a barrier")                                         \
  X(ReadDraftsOnce, "a token that is drafted twice counts once")                                  \
  X(ReadFirstChanges, "every row gets the first changes")                                         \
  X(ReadRepetition, "negative logits are divided by the repetition penalty")                      \
  X(ReadAmountsOverlap, "the next sums are written before all threads have read the last ones")   \
  X(ReadGatherEarly, "gathered tokens are read without a barrier")                                \
  X(ReadTopKTies, "top_k cuts the ties of the last logit")                                        \
  X(ReadNucleusOfAll, "top_p is a share of the whole row, whatever top_k cuts")                   \
  X(ReadNucleusTies, "top_p keeps all of a tie at its end")                                       \
  X(ReadChangesOfAll, "every part of a row makes all its changes")                                \
  X(ReadFirstParts, "the parts of every row are stored as those of the first")                    \
  X(ReadLastPart, "the last part of a divided row is ignored")                                    \
  X(ChooseAlways, "rows with a token of their own get a chosen one")                              \
  X(ChooseBest, "the best token is used instead of the chosen one")                               \
  X(ChooseInvalid, "a token is taken from an invalid answer")                                     \
  X(ProductTail, "a product reads past the end of its rows")                                      \
  X(ProductRows, "a product reads nonexistent rows")                                              \
  X(ProductStride, "the stride of weight tiles is one step too large")                            \
  X(ProductHalves, "the halves of a step are multiplied with each other's weights")               \
  X(ProductWithoutBarrier, "the warps' sums are added without a barrier")                         \
  X(ProductOneBuffer, "the next group's sums overwrite those still being read")                   \
  X(ProductOrder, "the warps' sums are added last to first")                                      \
  X(ProductColumns, "columns past the last are written")                                          \
  X(ProductFirstTile, "a block processes one tile, whatever the grid")                            \
  X(ProductBias, "gated values get the gate's bias")                                              \
  X(ProductAdded, "all rows get the first row's addition before the gate")                        \
  X(PackInOrder, "gated values are packed after the gates instead of alternating")                \
  X(BlocksHalves, "low and high nibbles are swapped")                                             \
  X(BlocksZero, "the zero point is not subtracted from codes")                                    \
  X(BlocksMin, "the minimum is ignored")                                                          \
  X(BlocksOuts, "a tile's last eight outs get the scales of the first eight")                     \
  X(BlocksTail, "groups past the last input get no scale")                                        \
  X(BlocksRows, "the second tile of rows gets the scales of the first")                           \
  X(BlocksRounded, "row quantization truncates instead of rounding")                              \
  X(BlocksOfAStep, "all groups of a step get the scale of the first")                             \
  X(BlocksNan, "rows with NaN get a scale of one")                                                \
  X(BlocksUpper, "two registers swap the upper bits of their codes")                              \
  X(BlocksSixteens, "the last 16 inputs of a group get the scale of the first 16")                \
  X(BlocksAhead, "a thread block multiplies its next tiles with the weights of the last ones")    \
  X(BlocksStride, "the row stride of a result is the width of one part")                          \
  X(BlocksUnweighted, "rows are normalized without the norm's weight before quantization")        \
  X(UnpackInTiles, "rows are unpacked in tile order")                                             \
  X(LoraWithoutBarrier, "the warps' sums of ranks are added without a barrier")                   \
  X(LoraSumsOverlap, "sums of other rows are written before all threads have read the last ones") \
  X(LoraFirstRow, "all rows of a tile have the adapter of its first row")                         \
  X(LoraEveryRow, "rows without an adapter get the additions of the row before")                  \
  X(LoraFirstLayer, "every layer has the matrices of the first")                                  \
  X(LoraTail, "products of ranks read past the end of a row")                                     \
  X(LoraTailCut, "the last inputs are left out unless they fill a step")                          \
  X(LoraRanksCut, "the last ranks are left out unless they fill a thread block")                  \
  X(LoraRankStride, "a row's ranks are stored behind those of the row before")                    \
  X(LoraFirstRanks, "keys and values are computed from the ranks of the queries")                 \
  X(LoraFirstScale, "keys and values have the scale of the queries")                              \
  X(LoraLastRank, "the last rank of a matrix is not added")                                       \
  X(LoraColumns, "columns past the last are written")                                             \
  X(LoraNotCleared, "columns without an addition are not set to zero")                            \
  X(LoraStored, "additions replace the product")                                                  \
  X(AddedInOrder, "additions to a product are read at the row's number, whatever their place")    \
  X(NoWait, "a kernel does not wait for the previous launch")

enum class Mutant : uint8_t {
  kNone,
#define TANDEM_MUTANT(name, what) k##name,
  TANDEM_MUTANT_LIST(TANDEM_MUTANT)
#undef TANDEM_MUTANT
};

}  // namespace tandem::cuda
