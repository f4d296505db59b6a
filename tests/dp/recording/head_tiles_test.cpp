// A head by tiles of its outputs, which are computed again, kept, or columns of whole logits: losses, inputs' gradients
// and clipped sums beside float64, also for a table that is an embedding too; and the refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "dp/recording/attribution.h"
#include "kernels/embedding_norm.h"
#include "kernels/linear_norm.h"
#include "kernels/tied_pair.h"
#include "tests/dp/single_layer.h"

namespace ghostshard::tests {
namespace {

using kernels::Recording;

constexpr int64_t kVocabulary = 37;
constexpr int64_t kWidth = 12;

dp::SegmentsPtr segments_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return std::make_shared<kernels::Segments>(offsets);
}

// A table [V,d] that is a head and, if there are `ids`, an embedding whose rows are weighed with e.
struct Head {
  explicit Head(at::ScalarType dtype = at::kFloat, double scale = 0.5, int64_t last_rows = 3)
      : mesh(lone_mesh()),
        model(*mesh, {{"block", {{"table", {kVocabulary, kWidth}}}, fsdp::Residency::kKeep}}, dtype),
        segments(segments_of({4, 0, 1, 7, last_rows})) {
    at::manual_seed(3);
    const int64_t n = segments->rows();
    h = (at::randn({n, kWidth}) * 2).to(dtype);
    targets = at::randint(kVocabulary, {n}, at::kLong);
    weights = at::rand({n}) + 0.1;
    ids = at::randint(kVocabulary / 2, {lookups->rows()}, at::kLong);  // some of them twice
    e = at::randn({lookups->rows(), kWidth}).to(dtype);
    table = at::randn({kVocabulary, kWidth}).mul_(scale).to(dtype).to(at::kFloat);
    model.set_parameter(parameter(), table);
  }
  const fsdp::Parameter& parameter() { return model.parameter("table"); }
  at::Tensor loss(const dp::RecorderPtr& tape, int64_t tile_bytes, const at::Tensor& rows) {
    at::Tensor of_lookups = at::zeros({}, at::TensorOptions(at::kFloat).device(test_device()));
    if (tied) {
      of_lookups = dp::embedding(parameter(), there(ids), lookups, tape).mul(there(e)).to(at::kFloat).sum();
    }
    const at::Tensor losses =
        dp::linear_cross_entropy({.weight = &parameter()}, rows, there(targets), segments, tape, tile_bytes);
    return losses.dot(there(weights)) + of_lookups;
  }
  // The clipped sum [V,d] of one microbatch, as released.
  at::Tensor released(std::optional<Recording> way, double clip_norm, int64_t tile_bytes) {
    const auto plan = plan_without_noise(segments->units(), clip_norm);
    const auto key = key_of(1);
    auto clipper = plan.clipper(model, {.planned_recording = {way}});
    auto mechanism = plan.mechanism(model, key, nullptr);
    auto sum = clipper.begin();
    {
      const fsdp::Lease lease(model, 0);
      dp::add_microbatch(clipper, sum, segments->units(),
                         [&](const dp::RecorderPtr& recorder) { return loss(recorder, tile_bytes, there(h)); });
    }
    const auto gradient = mechanism.release(std::move(sum), {0});
    return gradient.slices()
               .shard(*model.groups().front())
               .narrow(0, 0, table.numel())
               .cpu()
               .to(at::kDouble)
               .view_as(table) *
           plan.divisor();
  }
  // The gradient of unit u, in float64; in bfloat16 from the rounded logit gradients.
  at::Tensor gradient_of(int64_t u) {
    const auto rows = [&](const at::Tensor& x) {
      return x.narrow(0, segments->begin(u), segments->length(u)).to(at::kDouble);
    };
    const at::Tensor p = at::softmax(at::mm(rows(h), table.to(at::kDouble).t()), 1);
    const at::Tensor target = targets.narrow(0, segments->begin(u), segments->length(u)).unsqueeze(1);
    const at::Tensor g = p.scatter_add(1, target, at::full_like(target, -1, at::kDouble)) * rows(weights).unsqueeze(1);
    at::Tensor gradient = at::mm(g.t(), rows(h));
    if (tied) {
      const int64_t first = lookups->begin(u), count = lookups->length(u);
      gradient.index_add_(0, ids.narrow(0, first, count), e.narrow(0, first, count).to(at::kDouble));
    }
    return gradient;
  }
  at::Tensor expected(double clip_norm) {
    at::Tensor sum = at::zeros({kVocabulary, kWidth}, at::kDouble);
    for (int64_t u = 0; u < segments->units(); ++u) {
      const at::Tensor g = gradient_of(u);
      sum += g * std::min(1.0, clip_norm / std::max(g.norm().item<double>(), 1e-300));
    }
    return sum;
  }

  std::unique_ptr<fsdp::Mesh> mesh;
  fsdp::ShardedModel model;
  dp::SegmentsPtr segments;
  dp::SegmentsPtr lookups = segments_of({5, 2, 0, 6, 3});  // a text's first token has no loss, a masked one none at all
  at::Tensor h, targets, weights, ids, e, table;
  bool tied = true;
};

double relative(const at::Tensor& found, const at::Tensor& expected) {
  return (found - expected).norm().item<double>() / expected.norm().item<double>();
}

TEST(HeadTiles, have_as_many_outputs_as_fit) {
  using dp::HeadTiles;
  EXPECT_EQ(HeadTiles::width_of(1024, 50257, int64_t{32} << 20), 8192);
  EXPECT_EQ(HeadTiles::width_of(1000, 50257, int64_t{32} << 20), 8384) << "a multiple of 64";
  EXPECT_EQ(HeadTiles::width_of(1024, 500, int64_t{32} << 20), 500) << "all there are";
  EXPECT_EQ(HeadTiles::width_of(10, 500, 10 * 4 * 5), 5);
  EXPECT_EQ(HeadTiles::width_of(1 << 30, 500, 1), 1) << "one at least";
  EXPECT_EQ(HeadTiles::width_of(0, 500, 1 << 20), 500);
}

// A recording, and bytes of a tile: 15 rows of float32.
class TiledHead : public testing::TestWithParam<std::tuple<Recording, int64_t>> {
 protected:
  Recording way() const { return std::get<0>(GetParam()); }
  int64_t tile_bytes() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(, TiledHead,
                         testing::Combine(testing::Values(Recording::kRecompute, Recording::kHold, Recording::kReplay),
                                          testing::Values(1, 15 * 4 * 5, 15 * 4 * 36, 1 << 20)));

TEST_P(TiledHead, has_the_losses_and_input_gradients_of_float64) {
  const bool on_cpu = test_device().is_cpu();  // where a head that is replayed keeps its tiles
  const bool cuts = tile_bytes() < 15 * 4 * kVocabulary && (way() == Recording::kHold || on_cpu);
  const bool by_tiles = way() == Recording::kRecompute || cuts;
  for (const double scale : {0.1, 40.0}) {  // most probabilities underflow with the second
    if (scale > 1 && !by_tiles) continue;   // whole logits that were overwritten give a loss of at most 87.3
    Head head(at::kFloat, scale);
    head.tied = false;
    const fsdp::Lease lease(head.model, 0);
    const auto plan = plan_without_noise(head.segments->units(), 1);
    auto clipper = plan.clipper(head.model, {.planned_recording = {way()}});
    const auto tape = clipper.record(head.segments->units());
    const at::Tensor rows = there(head.h).detach().requires_grad_(true);
    const at::Tensor exact_rows = head.h.to(at::kDouble).requires_grad_(true);
    const at::Tensor losses = dp::linear_cross_entropy({.weight = &head.parameter()}, rows, there(head.targets),
                                                       head.segments, tape, tile_bytes());
    const at::Tensor expected = at::cross_entropy_loss(at::mm(exact_rows, head.table.to(at::kDouble).t()), head.targets,
                                                       {}, at::Reduction::None);
    // A logit is a sum of 12 products and errs by 12·2^-24 of the absolute ones; a loss by twice that, and the sum of
    // 37 exponentials by 37·2^-24.
    const double mass = at::mm(head.h.abs(), head.table.abs().t()).max().item<double>();
    const double tolerance = 0x1p-24 * (2 * (kWidth + 2) * mass + kVocabulary + 8);
    EXPECT_TRUE(at::allclose(losses.cpu().to(at::kDouble), expected, 0x1p-23, tolerance));
    (losses.dot(there(head.weights))).backward();
    expected.dot(head.weights.to(at::kDouble)).backward();
    // Each of the inputs' gradients is a sum of 37 probabilities, off as the losses are, times weights of the table.
    const double largest = head.table.abs().max().item<double>() * kVocabulary;
    EXPECT_TRUE(at::allclose(rows.grad().cpu().to(at::kDouble), exact_rows.grad(), 0, 2 * tolerance * largest));
  }
}

TEST_P(TiledHead, clips_as_float64_does) {
  for (const bool tied : {false, true}) {
    for (const double clip_norm : {1e-3, 3.0, 1e6}) {
      Head head;
      head.tied = tied;
      // Sums of at most 15 + 16 products of numbers that err by about 20·2^-24, and the norm's bound: 2·gamma(10) times
      // the mass, which is at most ten times the norm here.
      EXPECT_LT(relative(head.released(way(), clip_norm, tile_bytes()), head.expected(clip_norm)), 2e-5)
          << (tied ? "tied " : "untied ") << clip_norm;
    }
  }
}

TEST_P(TiledHead, in_bfloat16_sums_the_values_whose_norm_was_taken) {
  for (const bool tied : {false, true}) {
    Head head(at::kBFloat16);
    head.tied = tied;
    const double clip_norm = 1e-3;  // every unit is at the bound: the direction alone is rounded
    EXPECT_LT(relative(head.released(way(), clip_norm, tile_bytes()), head.expected(clip_norm)), 0.02);
  }
}

TEST_P(TiledHead, gives_a_unit_whose_logits_are_not_finite_no_part) {
  Head head;
  head.h[4] = std::numeric_limits<float>::infinity();  // the third unit's only row
  const at::Tensor found = head.released(way(), 1.0, tile_bytes());
  EXPECT_TRUE(found.isfinite().all().item<bool>());
  Head without;
  without.weights[4] = 0;
  const at::Tensor expected = without.expected(1.0);
  EXPECT_LT(relative(found, expected), 2e-5) << "(the unit looks nothing up)";
}

// With few rows, and with so many that the norm is taken from the gradient itself, formed in float32.
TEST(TiledHeads, one_unit_moves_the_sum_by_at_most_the_clip_norm_where_both_uses_cancel) {
  for (const auto& [rows, residue, way] : {std::tuple{3, 1.0, Recording::kRecompute},
                                           {3, 1e-4, Recording::kRecompute},
                                           {3, 0.0, Recording::kRecompute},
                                           {80, 1e-3, Recording::kRecompute},
                                           {80, 1e-4, Recording::kRecompute},
                                           {80, 0.0, Recording::kRecompute},
                                           {3, 1e-4, Recording::kHold},
                                           {80, 1e-4, Recording::kHold},
                                           {80, 0.0, Recording::kHold},
                                           {80, 1e-4, Recording::kReplay}}) {
    Head head(at::kFloat, 0.5, rows);
    // The last unit's lookups cancel its loss's gradient of those rows, but for the residue.
    const int64_t u = head.segments->units() - 1;
    head.weights.narrow(0, head.segments->begin(u), rows).mul_(1e3);
    head.tied = false;
    const at::Tensor of_loss = head.gradient_of(u);
    head.tied = true;
    head.lookups = segments_of({5, 2, 0, 6, kVocabulary});
    head.ids = at::cat({head.ids.narrow(0, 0, 13), at::arange(kVocabulary, at::kLong)});
    head.e = at::cat({head.e.narrow(0, 0, 13), (of_loss * -(1 - residue)).to(at::kFloat)});
    const at::Tensor whole = head.released(way, 1.0, (12 + rows) * 4 * 5);
    at::Tensor less = at::zeros_like(whole);
    for (int64_t other = 0; other < u; ++other) {
      const at::Tensor g = head.gradient_of(other);
      less += g * std::min(1.0, 1.0 / std::max(g.norm().item<double>(), 1e-300));
    }
    // The others are within 2e-5 of four units' bound of the float64 result.
    EXPECT_LE((whole - less).norm().item<double>(), 1.0 + 8e-5 + dp::DpPlan::rounding_slack(head.segments->units()))
        << rows << " rows, residue " << residue;
  }
}

TEST(TiledHeads, one_unit_moves_the_sum_by_at_most_the_clip_norm_where_its_rows_cancel) {
  for (const auto& [residue, way] : {std::pair{1e-3, Recording::kRecompute},
                                     {1e-5, Recording::kRecompute},
                                     {1e-6, Recording::kRecompute},
                                     {1e-5, Recording::kHold},
                                     {1e-5, Recording::kReplay}}) {
    Head head;
    head.tied = false;
    const int64_t u = head.segments->units() - 1, first = head.segments->begin(u);
    for (at::Tensor* rows : {&head.h, &head.targets}) (*rows)[first + 1].copy_((*rows)[first]);
    head.weights[first] = 1;
    head.weights[first + 1] = -(1 - residue);
    head.weights[first + 2] = 0;
    const at::Tensor whole = head.released(way, 1.0, 15 * 4 * 5);
    head.weights.narrow(0, first, 3).zero_();
    const at::Tensor less = head.released(way, 1.0, 15 * 4 * 5);
    EXPECT_LE((whole - less).norm().item<double>(), 1.0 + dp::DpPlan::rounding_slack(head.segments->units()))
        << residue;
  }
}

// The norms of a head by tiles beside those that the kernels find of rows that stand whole.
TEST(TiledHeads, have_the_parts_of_whole_rows) {
  for (const int64_t tile_bytes : {15 * 4 * 5, 1 << 20}) {
    Head head;
    const fsdp::Lease lease(head.model, 0);
    const at::Tensor h = there(head.h);
    const auto tiles = std::make_shared<const dp::HeadTiles>(
        dp::HeadTiles({.weight = &head.parameter()}, h, there(head.targets), tile_bytes).weighed(there(head.weights)));
    const at::Tensor ids = there(head.ids);
    dp::RecomputedHead recorded(tiles, h, head.segments, {ids, head.lookups});
    std::vector<at::Tensor> gradients;
    at::Tensor scratch;
    for (int64_t tile = 0; tile < tiles->count(); ++tile) {
      gradients.push_back(tiles->gradients(h, tile, scratch).clone());
      recorded.take(tile, gradients.back());
    }
    const int64_t units = head.segments->units();
    const at::Tensor g = at::cat(gradients, 1), e = there(head.e);
    auto found = kernels::NormParts::zeros(units, test_device());
    auto expected = kernels::NormParts::zeros(units, test_device());
    recorded.add_norm_to(found);
    kernels::passing_norm(h, g, *head.segments, expected);
    // Smaller than that of whole rows (Minkowski), and the same if one tile is the whole.
    EXPECT_TRUE(found.mass.le(expected.mass * (1 + 1e-12)).all().item<bool>());
    EXPECT_TRUE(found.mass.ge(expected.mass * (tiles->count() == 1 ? 1 - 1e-12 : 0.3)).all().item<bool>());
    for (auto* parts : {&found, &expected}) kernels::embedding_norm(ids, e, *head.lookups, kVocabulary, *parts);
    recorded.add_cross_term_to(ids, e, found);
    kernels::tied_pair_cross_term(ids, e, *head.lookups, h, g, *head.segments, expected);
    EXPECT_TRUE((found.value - expected.value).abs().le(found.value_error + expected.value_error).all().item<bool>());
    EXPECT_TRUE(found.sum_error.ge(expected.sum_error).all().item<bool>()) << "each unit's rows of both uses";
    EXPECT_TRUE(found.value_error.le(1e-3 * found.value).all().item<bool>());
  }
}

TEST(TiledHeads, are_the_replayed_sum_but_for_rounding) {
  Head head;
  EXPECT_LT(relative(head.released(Recording::kRecompute, 3.0, 15 * 4 * 5),
                     head.released(Recording::kReplay, 3.0, 15 * 4 * 5)),
            2e-5);
}

// The second pass must bring the bits of the first, of rows that may be apart.
TEST(TiledHeads, are_the_replayed_sum_in_two_passes_too) {
  Head head;
  head.tied = false;
  for (const int64_t tile_bytes : {int64_t{15 * 4 * 5}, 15 * 4 * kVocabulary}) {
    EXPECT_LT(relative(head.released(Recording::kTwoPass, 3.0, tile_bytes),
                       head.released(Recording::kReplay, 3.0, tile_bytes)),
              2e-5);
  }
}

// As a check of attribution does: a backward that keeps its graph is watched before the one that is recorded.
TEST_P(TiledHead, gives_the_same_sum_after_a_backward_that_was_watched) {
  Head head;
  const auto released = [&](bool watched) {
    const auto plan = plan_without_noise(head.segments->units(), 3.0);
    const auto key = key_of(1);
    auto clipper = plan.clipper(head.model, {.planned_recording = {way()}});
    auto mechanism = plan.mechanism(head.model, key, nullptr);
    auto sum = clipper.begin();
    {
      const fsdp::Lease lease(head.model, 0);
      const auto tape = clipper.record(head.segments->units());
      const at::Tensor loss = head.loss(tape, tile_bytes(), there(head.h));
      if (watched) {
        const auto watcher = std::make_shared<dp::Attribution>(std::vector<bool>(5, true));
        tape->watch(watcher);
        loss.backward({}, /*retain_graph=*/true);
        EXPECT_GT(watcher->masses().begin()->second.back(), 0);
        tape->watch(nullptr);
      }
      loss.backward();
      clipper.add(sum, tape);
    }
    const auto gradient = mechanism.release(std::move(sum), {0});
    return gradient.slices().shard(*head.model.groups().front()).narrow(0, 0, head.table.numel()).cpu().clone();
  };
  EXPECT_TRUE(at::equal(released(true), released(false)));
}

// A second head, a linear layer, an embedding that backward reaches before the head, and one that it reaches after the
// head though forward did not announce it (a checkpoint runs it again). A head that is replayed meets embeddings alone.
TEST(TiledHeads, take_other_uses_of_the_matrix_in) {
  enum class Other { kHead, kLinear, kEarlyEmbedding, kLateEmbedding };
  for (const auto& [other, way] : {std::pair{Other::kHead, Recording::kHold},
                                   {Other::kLinear, Recording::kHold},
                                   {Other::kEarlyEmbedding, Recording::kHold},
                                   {Other::kLateEmbedding, Recording::kHold},
                                   {Other::kEarlyEmbedding, Recording::kReplay},
                                   {Other::kLateEmbedding, Recording::kReplay}}) {
    Head head;
    head.tied = false;
    const at::Tensor second = at::randn({head.segments->rows(), kWidth});
    const auto released = [&, other = other, way = way](int64_t tile_bytes) {
      const auto plan = plan_without_noise(head.segments->units(), 3.0);
      const auto key = key_of(1);
      auto clipper = plan.clipper(head.model, {.planned_recording = {way}});
      auto mechanism = plan.mechanism(head.model, key, nullptr);
      auto sum = clipper.begin();
      {
        const fsdp::Lease lease(head.model, 0);
        const auto tape = clipper.record(head.segments->units());
        const dp::LinearUse use{.weight = &head.parameter()};
        const at::Tensor rows = there(head.h).detach().requires_grad_(true);
        const at::Tensor loss = head.loss(tape, tile_bytes, rows);
        at::Tensor more = at::zeros({}, loss.options());
        if (other == Other::kLateEmbedding) {
          rows.register_hook([&](const at::Tensor&) {
            tape->embedding(head.parameter(), there(head.ids), there(head.e), head.lookups);
          });
        } else if (other == Other::kHead) {
          more = dp::linear_cross_entropy(use, there(second), there(head.targets), head.segments, tape, tile_bytes)
                     .dot(there(head.weights));
        } else if (other == Other::kLinear) {
          more = dp::linear(use, there(second), head.segments, tape).square().sum();
        } else {
          more = dp::embedding(head.parameter(), there(head.ids), head.lookups, tape).mul(there(head.e)).sum();
        }
        (loss + more).backward();  // what came last in forward comes first
        clipper.add(sum, tape);
      }
      const auto gradient = mechanism.release(std::move(sum), {0});
      return gradient.slices()
          .shard(*head.model.groups().front())
          .narrow(0, 0, head.table.numel())
          .cpu()
          .to(at::kDouble);
    };
    // One tile of all outputs is no tile: the matrix is held whole. Sums of at most 30 products, in another order.
    EXPECT_LT(relative(released(15 * 4 * 5), released(1 << 20)), 2e-5)
        << static_cast<int>(other) << ' ' << static_cast<int>(way);
  }
}

TEST(TiledHeads, are_kept_for_replay_unless_the_matrix_was_looked_up_or_a_unit_is_long) {
  Head head;
  const auto plan = plan_without_noise(head.segments->units(), 1);
  auto clipper = plan.clipper(head.model, {.planned_recording = {Recording::kReplay}});
  auto tape = clipper.record(head.segments->units());
  const auto asked = [&](const dp::SegmentsPtr& segments) {
    return tape->takes_tiles(head.parameter(), there(at::zeros({segments->rows(), kWidth})), segments);
  };
  EXPECT_EQ(asked(segments_of({1, 129, 0, 1, 1})), std::nullopt);
  const auto kept = test_device().is_cpu() ? std::optional(dp::TileLogits::kKept) : std::nullopt;
  EXPECT_EQ(asked(head.segments), kept);
  EXPECT_EQ(asked(head.segments), std::nullopt) << "a second head of one matrix";
  tape.reset();
  tape = clipper.record(head.segments->units());
  tape->looked_up(head.parameter(), there(head.ids), head.lookups);
  EXPECT_EQ(asked(head.segments), std::nullopt);
}

TEST(TiledHeads, that_are_replayed_refuse_a_second_layer) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "a device replays whole heads";
  Head head;
  head.tied = false;
  const auto plan = plan_without_noise(head.segments->units(), 1);
  auto clipper = plan.clipper(head.model, {.planned_recording = {Recording::kReplay}});
  const fsdp::Lease lease(head.model, 0);
  for (const bool is_head : {true, false}) {
    const auto tape = clipper.record(head.segments->units());
    const at::Tensor rows = there(head.h);
    const at::Tensor other = is_head ? head.loss(tape, 300, rows)
                                     : dp::linear({.weight = &head.parameter()}, rows, head.segments, tape).sum();
    const at::Tensor loss = head.loss(tape, 300, rows) + other;
    EXPECT_THAT([&] { loss.backward(); }, testing::ThrowsMessage<std::exception>(testing::HasSubstr("'table' is")));
  }
}

TEST(TiledHeads, refuse_weights_that_changed_before_the_sum) {
  Head head;
  const auto plan = plan_without_noise(head.segments->units(), 1);
  const auto key = key_of(1);
  auto clipper = plan.clipper(head.model, {.planned_recording = {Recording::kRecompute}});
  auto mechanism = plan.mechanism(head.model, key, nullptr);
  auto sum = clipper.begin();
  const auto tape = clipper.record(head.segments->units());
  {
    const fsdp::Lease lease(head.model, 0);
    head.loss(tape, 15 * 4 * 5, there(head.h)).backward();
  }
  head.model.set_parameter(head.parameter(), head.table * (1 + 0x1p-20));
  const fsdp::Lease lease(head.model, 0);
  EXPECT_THAT([&] { clipper.add(sum, tape); },
              testing::ThrowsMessage<std::logic_error>(testing::HasSubstr("'table' differ")));
  EXPECT_THAT([&] { clipper.add(sum, tape); },
              testing::ThrowsMessage<std::logic_error>(testing::HasSubstr("has failed half-way")));
  EXPECT_THAT([&] { mechanism.release(std::move(sum), {0}); },
              testing::ThrowsMessage<std::logic_error>(testing::HasSubstr("added in part")));
}

TEST(TiledHeads, serve_one_head_and_one_embedding) {
  Head head;
  const auto plan = plan_without_noise(head.segments->units(), 1);
  auto clipper = plan.clipper(head.model, {.planned_recording = {Recording::kRecompute}});
  const fsdp::Lease lease(head.model, 0);
  const auto refused = [&](const auto& second) {
    const auto tape = clipper.record(head.segments->units());
    const at::Tensor rows = there(head.h);
    const at::Tensor loss = head.loss(tape, 300, rows) + second(tape, rows);
    EXPECT_THAT([&] { loss.backward(); }, testing::ThrowsMessage<std::exception>(testing::HasSubstr("'table' is")));
  };
  refused([&](const auto& tape, const at::Tensor& rows) {
    head.tied = false;
    return head.loss(tape, 300, rows);
  });
  refused([&](const auto& tape, const at::Tensor& rows) {
    return dp::linear({.weight = &head.parameter()}, rows, head.segments, tape).sum();
  });
  head.tied = true;
  refused([&](const auto& tape, const at::Tensor&) {
    return dp::embedding(head.parameter(), there(head.ids), head.lookups, tape).sum();
  });
}

}  // namespace
}  // namespace ghostshard::tests
