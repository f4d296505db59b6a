// True epsilons of composed Poisson-sampled Gaussians: public facts, computed apart from this code by two contours in
// 40-digit arithmetic, each inside the bracket of an independent grid. The larger of removing and adding.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "accountant/accountant.h"

namespace ghostshard::accountant {

struct OraclePhase {
  double q, sigma;
  int64_t steps;
};

struct OracleTruth {
  const char* name;
  std::vector<OraclePhase> phases;
  double delta;
  double epsilon;
  double error;  // of epsilon, by the statement of those who computed it
  // Rényi's bound: at Opacus' orders, and the least over all. By quadrature apart from this code, the latter to 3e-8.
  double at_opacus_orders = 0;
  double at_continuous_orders = 0;
};

inline Event event_of(const OraclePhase& phase) {
  return PoissonGaussianEvent{SamplingRate(phase.q), NoiseMultiplier(phase.sigma)};
}

inline void PrintTo(const OracleTruth& row, std::ostream* out) { *out << row.name; }

inline std::unique_ptr<Accountant> charged(const std::string& engine, const OracleTruth& row,
                                           Adjacency adjacency = Adjacency::kZeroOut) {
  auto accountant = make_accountant(engine, adjacency);
  for (const OraclePhase& phase : row.phases) accountant->compose(event_of(phase), phase.steps);
  return accountant;
}

inline const std::vector<OracleTruth>& oracle_truths() {
  static const std::vector<OracleTruth> rows = {
      {"mnist_s1_1_60ep",
       {{0.004266666666666667, 1.1, 14063}},
       1e-05,
       2.381689726141649,
       1e-15,
       2.596655528681011,
       2.5966419148565816},
      {"mnist_s1_3_15ep",
       {{0.004266666666666667, 1.3, 3516}},
       1e-05,
       0.864540191226032,
       1e-15,
       0.9545639531403425,
       0.9544868275613746},
      {"opacus_q_04_s1_5_T2250",
       {{0.04, 1.5, 2250}},
       1e-05,
       6.768780393418047,
       1e-15,
       7.3291111715348265,
       7.328349914646218},
      {"opacus_q_04_s1_5_T2249",
       {{0.04, 1.5, 2249}},
       1e-05,
       6.767044105816669,
       1e-15,
       7.327277969335221,
       7.326495218445743},
      {"msr_s3_q_05_T100", {{0.05, 3.0, 100}}, 1e-06, 0.757881967963813, 1e-15, 0.8267777115150985, 0.8267738194736673},
      {"msr_s_8_q_2_T100", {{0.2, 0.8, 100}}, 1e-06, 24.32262019485096, 1e-15, 26.47749985922737, 26.461315941937166},
      {"msr_s3_q_05_T1000",
       {{0.05, 3.0, 1000}},
       1e-06,
       2.517449871499532,
       1e-15,
       2.7086296846892712,
       2.7086017322987974},
      {"msr_s2_q_001_T20000",
       {{0.001, 2.0, 20000}},
       1e-06,
       0.2958009786952021,
       1e-15,
       0.3227205851876388,
       0.32272009667634205},
      {"msr_s_8_q_05_T50000",
       {{0.05, 0.8, 50000}},
       1e-06,
       291.3699261527288,
       1e-15,
       302.5693192070759,
       300.93795181247754},
      {"google_q_2_s_5_T3",
       {{0.2, 0.5, 3}},
       0.15594,
       0.9999250806846895,
       3e-10,
       2.9258033048442105,
       2.9132416857075403},
      {"jaxprivacy_q_1_s3_T512",
       {{0.1, 3.0, 512}},
       1e-06,
       3.769683805212122,
       1e-15,
       4.0509699746361605,
       4.050944486558417},
      {"e2e_rdp_eps3_d8e_6",
       {{0.024345593304961843, 1.088633, 411}},
       8e-06,
       2.673314042110627,
       1e-15,
       2.9999974172881294,
       2.99999706329152},
      {"cifar10_wrn16_B4096_s3_T2468",
       {{0.08192, 3.0, 2468}},
       1e-05,
       6.529280107377976,
       1e-15,
       7.045754981789721,
       7.0454423642398805},
      {"gauss_q1_s10_T100", {{1.0, 10.0, 100}}, 1e-05, 4.377178095681225, 1e-15, 4.728507067213794, 4.7283869849395845},
      {"q_01_s1_T1e4", {{0.01, 1.0, 10000}}, 1e-05, 6.187712389971539, 1e-15, 6.712738297329392, 6.712271762297313},
      {"q_01_s1_T1e6", {{0.01, 1.0, 1000000}}, 1e-05, 139.0302725705578, 1e-15, 145.16683647064036, 144.7770085632349},
      {"q_5_s2_T100", {{0.5, 2.0, 100}}, 1e-05, 14.28448184452736, 1e-15, 15.392464192990811, 15.392053741524814},
      {"q_01_s_3_T1000", {{0.01, 0.3, 1000}}, 1e-06, 78.14050905633592, 1e-15, 86.72984142481283, 86.58302587235909},
      {"tiny_delta_1_1e_18",
       {{0.00033, 4.0, 10000}},
       1.1e-18,
       0.06721361410591916,
       1e-15,
       0.5863454143377276,
       0.145684905263206659},
      {"hetero_2phase",
       {{0.01, 1.2, 5000}, {0.02, 0.9, 1000}},
       1e-05,
       5.892513176225021,
       1e-15,
       6.483323985596998,
       6.482157001059287},
      {"delta_1e_8", {{0.001, 1.0, 10000}}, 1e-08, 0.6965643235612678, 1e-15, 1.363305807676268, 1.3570030487082105},
      {"delta_1e_10", {{0.001, 1.0, 10000}}, 1e-10, 0.8533526026492799, 1e-15, 1.7470699898419424, 1.7346477019540785},
      {"delta_1e_14", {{0.001, 1.0, 10000}}, 1e-14, 1.608152502337551, 1e-15, 2.5145983541732906, 2.4864465593220784},
      {"q1e_4_s1_T1e7",
       {{0.0001, 1.0, 10000000}},
       1e-06,
       1.838199807469938,
       1e-15,
       1.9768134572659766,
       1.975291221760663}};
  return rows;
}

}  // namespace ghostshard::accountant
