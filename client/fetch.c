/* fetch: see fetch.h. */
#include "client/fetch.h"

int fetch_start(struct batch *batch, struct call_channel *channel, struct error *error) {
    Ballast__V1__FetchRequest request = BALLAST__V1__FETCH_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    id.step = batch->view.step;
    id.dp = batch->view.dp;
    id.index = batch->view.index;
    request.id = &id;
    return call_fetch_start(channel, "ballast.v1.Loader", "Fetch", &request.base,
                            batch->copy + MAPPING_SLOT_HEADER_BYTES, batch->slot_bytes, error);
}
