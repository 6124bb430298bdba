/* distribution: see distribution.h.
 *
 * Where the tables come from: `wlb128k` and `prolong` are the quantiles of the two length lists
 * that public context-parallel samplers ship, the first read off WLB-LLM's figure 3 (99,519
 * documents), the second of the ProLong corpus (77,932). `libra256k` and `libra1m` are quantiles of
 * mixtures of a lognormal body and a Pareto tail, fitted to Libra's table 1. */
#include "planner/distribution.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define KNOTS      80u
#define MILLIONTHS 1000000u

/* Of all documents, so many millionths are not longer than the knot's length. */
static const uint32_t probabilities[KNOTS] = {
    0,      20000,  40000,  60000,  80000,  100000, 120000, 140000,  160000, 180000, 200000, 220000,
    240000, 260000, 280000, 300000, 320000, 340000, 360000, 380000,  400000, 420000, 440000, 460000,
    480000, 500000, 520000, 540000, 560000, 580000, 600000, 620000,  640000, 660000, 680000, 700000,
    720000, 740000, 760000, 780000, 800000, 820000, 840000, 860000,  880000, 900000, 910000, 920000,
    930000, 940000, 950000, 955000, 960000, 965000, 970000, 975000,  980000, 982500, 985000, 987500,
    990000, 991000, 992000, 993000, 994000, 995000, 996000, 997000,  997500, 998000, 998500, 999000,
    999200, 999400, 999600, 999800, 999900, 999950, 999990, 1000000,
};

struct distribution {
    const char *name;
    uint32_t window;
    uint32_t lengths[KNOTS];
};

static const struct distribution distributions[DISTRIBUTIONS] = {
    {
        .name = "wlb128k",
        .window = 131072,
        .lengths =
            {
                1,      129,    256,    386,    518,    646,    772,    896,    1027,   1154,
                1283,   1414,   1542,   1674,   1802,   1932,   2065,   2195,   2322,   2454,
                2582,   2711,   2840,   2975,   3104,   3227,   3353,   3480,   3605,   3731,
                3861,   3990,   4116,   4248,   4382,   4514,   4644,   4767,   4897,   5025,
                5156,   5281,   5407,   5536,   5657,   5784,   5851,   5917,   5980,   6045,
                6110,   6140,   6173,   6205,   6236,   7484,   10080,  11412,  13216,  17776,
                26070,  31826,  38069,  46584,  56094,  69118,  78669,  91226,  95155,  99310,
                108050, 119836, 121182, 122252, 123010, 123797, 124247, 124702, 124913, 124913,
            },
    },
    {
        .name = "prolong",
        .window = 131072,
        .lengths =
            {
                575,   715,   776,   826,   872,   919,    962,    1004,   1046,   1089,
                1130,  1173,  1215,  1259,  1303,  1347,   1392,   1440,   1488,   1540,
                1594,  1651,  1711,  1775,  1839,  1914,   1993,   2074,   2162,   2259,
                2362,  2472,  2591,  2725,  2861,  3018,   3185,   3374,   3569,   3788,
                4050,  4337,  4662,  5037,  5472,  6051,   6369,   6754,   7202,   7745,
                8379,  8758,  9208,  9754,  10431, 11166,  12310,  12945,  13810,  14744,
                16273, 16791, 17676, 18721, 19759, 21393,  24180,  27855,  29858,  33207,
                38987, 47500, 54323, 67265, 88566, 145573, 240055, 309251, 340149, 340149,
            },
    },
    {
        .name = "libra256k",
        .window = 262144,
        .lengths =
            {
                1,      27,     44,     59,     74,     89,     105,    122,    139,    157,
                175,    195,    216,    238,    261,    286,    312,    340,    369,    401,
                434,    471,    509,    551,    596,    644,    697,    754,    816,    884,
                958,    1040,   1131,   1233,   1346,   1474,   1619,   1786,   1979,   2205,
                2473,   2799,   3202,   3717,   4400,   5360,   6007,   6831,   7924,   9468,
                11869,  13695,  16355,  20756,  23205,  25674,  29033,  31236,  33975,  37508,
                42305,  44768,  47681,  51204,  55579,  61217,  68870,  80112,  88142,  99048,
                115090, 142167, 159699, 185558, 229388, 262144, 262144, 262144, 262144, 262144,
            },
    },
    {
        .name = "libra1m",
        .window = 1048576,
        .lengths =
            {
                1,       21,      35,      48,      61,      75,      90,      105,     121,
                138,     156,     175,     195,     217,     240,     264,     291,     319,
                349,     382,     417,     456,     497,     542,     590,     644,     702,
                766,     837,     915,     1002,    1099,    1208,    1332,    1473,    1636,
                1824,    2046,    2310,    2631,    3029,    3535,    4204,    5135,    6532,
                8916,    10929,   14244,   16786,   19208,   22514,   24674,   27333,   30697,
                35103,   41155,   50047,   56298,   64538,   75938,   92834,   102145,  113730,
                128555,  148231,  175654,  216607,  284557,  338730,  419764,  554349,  822161,
                1022079, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576,
            },
    },
};

const struct distribution *distribution_at(uint32_t index) {
    assert(index < DISTRIBUTIONS);
    return &distributions[index];
}

const struct distribution *distribution_find(const char *name) {
    for (uint32_t i = 0; i < DISTRIBUTIONS; i++) {
        if (strcmp(distributions[i].name, name) == 0) {
            return &distributions[i];
        }
    }
    return NULL;
}

const char *distribution_name(const struct distribution *distribution) {
    return distribution->name;
}

uint32_t distribution_window(const struct distribution *distribution) {
    return distribution->window;
}

uint32_t distribution_length_max(const struct distribution *distribution) {
    return distribution->lengths[KNOTS - 1];
}

/* splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t keyed_hash(uint64_t seed, uint64_t index) {
    uint64_t key = mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    return mix(key ^ (index * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x632be59bd9b4e019)));
}

/* Probability is in millionths with 16 fractional bits. */
static uint32_t segment_of(uint64_t probability) {
    uint32_t low = 0;
    uint32_t high = KNOTS - 1;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if ((uint64_t)probabilities[middle] << 16 <= probability) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t distribution_length(const struct distribution *distribution, uint64_t seed,
                             uint64_t index) {
    unsigned __int128 scaled = (unsigned __int128)keyed_hash(seed, index) * MILLIONTHS;
    uint64_t probability = (uint64_t)(scaled >> 48);
    uint32_t at = segment_of(probability);
    uint64_t begin = (uint64_t)probabilities[at] << 16;
    uint64_t end = (uint64_t)probabilities[at + 1] << 16;
    uint64_t rise = distribution->lengths[at + 1] - distribution->lengths[at];
    return distribution->lengths[at] + (uint32_t)(rise * (probability - begin) / (end - begin));
}
