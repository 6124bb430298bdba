/* The launcher by example, against the fake driver: what it refuses, what it says, what it leaves
 * behind when any call of the driver fails. */
#include "gpu_attn/params.h"
#include "tests/kernels/attn_problems.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* Buffers that nothing is read from: every launch here is refused or fake_cuda's to fail. */
struct request {
    struct ballast_attn_plan plan;
    struct ballast_attn_call call;
    struct ballast_attn *attn;
};

static _Alignas(64) uint16_t buffer[1 << 16];
static _Alignas(64) uint64_t memory[1 << 12];
static _Alignas(64) float workspace[1 << 16];

static void request_open(struct request *request) {
    static const struct ballast_attn_shape shape = {64, 2, 2, 8, 8};
    static const struct ballast_attn_fragment fragment = {
        .q_length = 8, .kv_length = 8, .head_count = 2};
    fake_cuda_reset();
    *request = (struct request){0};
    assert_int_equal(
        ballast_attn_plan_init(&request->plan, &shape, &fragment, 1, memory, sizeof memory, NULL),
        0);
    struct ballast_attn_tensor tensor = {buffer, 128, 64};
    static _Alignas(16) unsigned char lists[4096];
    memcpy(lists, request->plan.lists, request->plan.lists_bytes);
    request->call = (struct ballast_attn_call){
        .plan = &request->plan,
        .lists = lists,
        .q = tensor,
        .k = tensor,
        .v = tensor,
        .o = tensor,
        .d_o = tensor,
        .dq = tensor,
        .dk = tensor,
        .dv = tensor,
        .lse = workspace,
        .workspace = workspace + 1024,
        .workspace_bytes = sizeof workspace - 4096,
    };
    assert_int_equal(ballast_attn_open(&request->attn, NULL), 0);
}

static void refused(struct request *request, const char *text) {
    struct ballast_attn_error error = {0};
    int launches = fake_cuda.launches;
    assert_int_equal(ballast_attn_backward(request->attn, &request->call, &error), -EINVAL);
    assert_string_equal(error.text, text);
    assert_int_equal(error.code, -EINVAL);
    assert_int_equal(fake_cuda.launches, launches);
}

static void attn_launch_refuses_what_the_hardware_cannot_address(void **state) {
    (void)state;
    const char *const strides = ": data must be 16-byte aligned, strides positive multiples of 8 "
                                "elements, heads apart by head_dim or more";
    char text[200];
    struct request request;
    request_open(&request);
    request.call.q.row_stride = 132;
    (void)snprintf(text, sizeof text, "q%s", strides);
    refused(&request, text);
    request.call.q.row_stride = 128;
    request.call.dv.data = (char *)buffer + 8;
    (void)snprintf(text, sizeof text, "dv%s", strides);
    refused(&request, text);
    request.call.dv.data = buffer;
    request.call.k.head_stride = 56;
    (void)snprintf(text, sizeof text, "k%s", strides);
    refused(&request, text);
    ballast_attn_close(request.attn);
}

static void attn_launch_refuses_flags_scales_margins_and_lists(void **state) {
    (void)state;
    struct request request;
    request_open(&request);
    request.call.flags = 8;
    refused(&request, "unknown flags");
    request.call.flags = 0;
    request.call.scale = -1;
    refused(&request, "scale is negative or not finite");
    request.call.scale = 0;
    request.call.sm_margin = 3;
    refused(&request, "sm_margin leaves no processor");
    request.call.sm_margin = 2;
    const void *lists = request.call.lists;
    request.call.lists = NULL;
    refused(&request, "lists: NULL or not 16-byte aligned");
    request.call.lists = lists;
    request.call.lse = NULL;
    refused(&request, "lse is NULL");
    ballast_attn_close(request.attn);
}

static void attn_launch_needs_the_workspace_it_asked_for(void **state) {
    (void)state;
    struct request request;
    struct ballast_attn_error error;
    request_open(&request);
    request.call.workspace_bytes = ballast_attn_workspace_bytes(&request.plan, 0) - 1;
    assert_int_equal(ballast_attn_backward(request.attn, &request.call, &error), -ENOSPC);
    request.call.workspace_bytes++;
    assert_int_equal(ballast_attn_backward(request.attn, &request.call, &error), 0);
    assert_null(fake_cuda.last_stream);
    request.call.stream = &request;
    assert_int_equal(ballast_attn_forward(request.attn, &request.call, &error), 0);
    assert_ptr_equal(fake_cuda.last_stream, &request);
    assert_true(ballast_attn_workspace_bytes(&request.plan, BALLAST_ATTN_DETERMINISTIC) <
                request.call.workspace_bytes);
    ballast_attn_close(request.attn);
}

/* Of 3 processors and 2 tiles. */
static void attn_launch_leaves_the_margin_to_others(void **state) {
    static const int blocks[] = {2, 2, 1};
    (void)state;
    struct request request;
    request_open(&request);
    assert_int_equal(request.plan.tiles, 2);
    for (uint32_t margin = 0; margin < 3; margin++) {
        request.call.sm_margin = margin;
        assert_int_equal(ballast_attn_forward(request.attn, &request.call, NULL), 0);
        assert_int_equal(fake_cuda.last_blocks, blocks[margin]);
    }
    ballast_attn_close(request.attn);
}

static void attn_open_says_which_device_it_needs(void **state) {
    (void)state;
    struct ballast_attn *attn = NULL;
    struct ballast_attn_error error;
    fake_cuda_reset();
    fake_cuda.major = 10;
    assert_int_equal(ballast_attn_open(&attn, &error), -ENOTSUP);
    assert_string_equal(error.text, "the kernels need compute capability 9.0 (Hopper); this device "
                                    "has 10.0");
    fake_cuda_reset();
    fake_cuda.missing_call = 1;
    assert_int_equal(ballast_attn_open(&attn, &error), -ENODEV);
    assert_string_equal(error.text, "the NVIDIA driver finds no device");
    assert_null(attn);
}

/* The 1st, 2nd, 3rd ... call of the driver fails, until none is left to. */
static void attn_open_cleans_up_after_every_failure(void **state) {
    (void)state;
    int result = -1;
    int call = 0;
    while (result != 0) {
        struct ballast_attn *attn = NULL;
        struct ballast_attn_error error = {0};
        fake_cuda_reset();
        fake_cuda.fail_at = ++call;
        result = ballast_attn_open(&attn, &error);
        if (result != 0) {
            assert_null(attn);
            assert_true(result == -EIO || result == -ENODEV);
            assert_true(error.text[0] != '\0');
        }
        ballast_attn_close(attn);
        assert_int_equal(fake_cuda.modules, 0);
    }
    assert_true(call > 20);
}

static void attn_calls_report_the_first_failure_of_the_driver(void **state) {
    (void)state;
    struct request request;
    request_open(&request);
    int failures = 0;
    for (int call = 1;; call++) {
        struct ballast_attn_error error = {0};
        fake_cuda.fail_at = call;
        int result = ballast_attn_backward(request.attn, &request.call, &error);
        if (result == 0) {
            break;
        }
        assert_int_equal(result, -EIO);
        assert_non_null(strstr(error.text, ": CUDA_ERROR_FAKE"));
        failures++;
    }
    assert_int_equal(failures, 5 + 3); /* maps and launches */
    ballast_attn_close(request.attn);
}

static void attn_inverse_divides_every_packed_row(void **state) {
    (void)state;
    for (uint32_t count = 1; count <= 128; count++) {
        for (uint32_t row = 0; row < ATTN_TILE_ROWS; row++) {
            assert_int_equal(row * attn_inverse(count) >> 16, row / count);
        }
    }
}

static void attn_close_takes_null(void **state) {
    (void)state;
    ballast_attn_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_launch_refuses_what_the_hardware_cannot_address),
        cmocka_unit_test(attn_launch_refuses_flags_scales_margins_and_lists),
        cmocka_unit_test(attn_launch_needs_the_workspace_it_asked_for),
        cmocka_unit_test(attn_launch_leaves_the_margin_to_others),
        cmocka_unit_test(attn_open_says_which_device_it_needs),
        cmocka_unit_test(attn_open_cleans_up_after_every_failure),
        cmocka_unit_test(attn_calls_report_the_first_failure_of_the_driver),
        cmocka_unit_test(attn_inverse_divides_every_packed_row),
        cmocka_unit_test(attn_close_takes_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
