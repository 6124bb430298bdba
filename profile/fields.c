/* fields: see fields.h. */
#include "profile/fields.h"

#define AT(object, member)                                                                         \
    .offset = offsetof(struct object, member), .bytes = sizeof(((struct object *)0)->member)
#define TABLE(fields)                                                                              \
    { fields, sizeof fields / sizeof fields[0] }

#define LENGTH_MAX (1u << 26)

static const struct profile_field key_fields[] = {
    {.name = "abi", .kind = FIELD_NUMBER, AT(profile_key, abi), .max = UINT32_MAX, .must = true},
    {.name = "cc", .kind = FIELD_TEXT, AT(profile_key, cc), .must = true},
    {.name = "clock_cap_mhz",
     .kind = FIELD_NUMBER,
     AT(profile_key, clock_cap_mhz),
     .max = 100000,
     .optional = true},
    {.name = "cuda", .kind = FIELD_TEXT, AT(profile_key, cuda), .optional = true},
    {.name = "deterministic", .kind = FIELD_FLAG, AT(profile_key, deterministic), .must = true},
    {.name = "driver", .kind = FIELD_TEXT, AT(profile_key, driver), .optional = true},
    {.name = "dtype", .kind = FIELD_TEXT, AT(profile_key, dtype), .must = true},
    {.name = "gpu", .kind = FIELD_TEXT, AT(profile_key, gpu), .must = true},
    {.name = "head_dim",
     .kind = FIELD_NUMBER,
     AT(profile_key, head_dim),
     .max = 1024,
     .must = true},
    {.name = "kernel_build", .kind = FIELD_TEXT, AT(profile_key, kernel_build), .must = true},
    {.name = "kv_heads", .kind = FIELD_NUMBER, AT(profile_key, kv_heads), .max = 1024},
    {.name = "nccl", .kind = FIELD_TEXT, AT(profile_key, nccl), .optional = true},
    {.name = "power_cap_w",
     .kind = FIELD_NUMBER,
     AT(profile_key, power_cap_w),
     .max = 100000,
     .optional = true},
    {.name = "q_heads", .kind = FIELD_NUMBER, AT(profile_key, q_heads), .max = 1024},
    {.name = "sm_margin",
     .kind = FIELD_NUMBER,
     AT(profile_key, sm_margin),
     .max = 1024,
     .optional = true},
    {.name = "sms", .kind = FIELD_NUMBER, AT(profile_key, sms), .max = 1024},
    {.name = "topology", .kind = FIELD_TEXT, AT(profile_key, topology), .optional = true},
};

static const struct profile_field grid_fields[] = {
    {.name = "kv", .kind = FIELD_LIST, AT(profile_grid, kv), .max = LENGTH_MAX},
    {.name = "launch_ps", .kind = FIELD_NUMBER, AT(profile_grid, launch_ps), .max = PROFILE_PS_MAX},
    {.name = "q", .kind = FIELD_LIST, AT(profile_grid, q), .max = LENGTH_MAX},
};

static const struct profile_field linear_fields[] = {
    {.name = "ffn", .kind = FIELD_NUMBER, AT(profile_linear, ffn), .max = 1u << 22},
    {.name = "hidden", .kind = FIELD_NUMBER, AT(profile_linear, hidden), .max = 1u << 20},
};

static const struct profile_field degree_fields[] = {
    {.name = "bwd_p10_ps_per_token",
     .kind = FIELD_LIST,
     AT(profile_degree, bwd_p10),
     .max = PROFILE_PS_MAX,
     .lacking = true},
    {.name = "bwd_p90_ps_per_token",
     .kind = FIELD_LIST,
     AT(profile_degree, bwd_p90),
     .max = PROFILE_PS_MAX,
     .lacking = true},
    {.name = "bwd_ps_per_token",
     .kind = FIELD_LIST,
     AT(profile_degree, bwd_ps_per_token),
     .max = PROFILE_PS_MAX},
    {.name = "fwd_p10_ps_per_token",
     .kind = FIELD_LIST,
     AT(profile_degree, fwd_p10),
     .max = PROFILE_PS_MAX,
     .lacking = true},
    {.name = "fwd_p90_ps_per_token",
     .kind = FIELD_LIST,
     AT(profile_degree, fwd_p90),
     .max = PROFILE_PS_MAX,
     .lacking = true},
    {.name = "fwd_ps_per_token",
     .kind = FIELD_LIST,
     AT(profile_degree, fwd_ps_per_token),
     .max = PROFILE_PS_MAX},
    {.name = "tokens", .kind = FIELD_LIST, AT(profile_degree, tokens), .max = LENGTH_MAX},
};

static const struct profile_field group_fields[] = {
    {.name = "alpha_ps", .kind = FIELD_NUMBER, AT(profile_group, alpha_ps), .max = PROFILE_PS_MAX},
    {.name = "bytes", .kind = FIELD_LIST, AT(profile_group, bytes), .max = UINT64_C(1) << 40},
    {.name = "bytes_per_us",
     .kind = FIELD_NUMBER,
     AT(profile_group, bytes_per_us),
     .max = 1000000000},
    {.name = "p10_ps",
     .kind = FIELD_LIST,
     AT(profile_group, p10),
     .max = PROFILE_PS_MAX,
     .lacking = true},
    {.name = "p90_ps",
     .kind = FIELD_LIST,
     AT(profile_group, p90),
     .max = PROFILE_PS_MAX,
     .lacking = true},
    {.name = "ps", .kind = FIELD_LIST, AT(profile_group, ps), .max = PROFILE_PS_MAX},
};

static const struct profile_field measured_fields[] = {
    {.name = "clock_max_mhz",
     .kind = FIELD_NUMBER,
     AT(profile_measured, clock_max_mhz),
     .max = 100000,
     .optional = true},
    {.name = "clock_min_mhz",
     .kind = FIELD_NUMBER,
     AT(profile_measured, clock_min_mhz),
     .max = 100000,
     .optional = true},
    {.name = "runs", .kind = FIELD_NUMBER, AT(profile_measured, runs), .max = 1000000},
};

static const struct profile_field provenance_fields[] = {
    {.name = "date", .kind = FIELD_TEXT, AT(profile_provenance, date)},
    {.name = "host", .kind = FIELD_TEXT, AT(profile_provenance, host)},
    {.name = "tool", .kind = FIELD_TEXT, AT(profile_provenance, tool)},
};

const struct profile_fields profile_key_fields = TABLE(key_fields);
const struct profile_fields profile_grid_fields = TABLE(grid_fields);
const struct profile_fields profile_linear_fields = TABLE(linear_fields);
const struct profile_fields profile_degree_fields = TABLE(degree_fields);
const struct profile_fields profile_group_fields = TABLE(group_fields);
const struct profile_fields profile_measured_fields = TABLE(measured_fields);
const struct profile_fields profile_provenance_fields = TABLE(provenance_fields);

const struct profile_rows_field profile_rows_fields[PROFILE_ROWS_FIELDS] = {
    {"causal_ps_per_tile", offsetof(struct profile_grid, causal), true},
    {"p10_ps_per_tile", offsetof(struct profile_grid, p10), false},
    {"p90_ps_per_tile", offsetof(struct profile_grid, p90), false},
};

static const char *const collective_names[] = {"all_gather", "all_to_all", "reduce_scatter"};

const char *profile_collective_name(enum profile_collective collective) {
    return collective_names[collective];
}
