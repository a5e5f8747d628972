/* bin/vocab with one byte more in every tile of ring-dtp: what tests/tables.t holds tables against.
 */
#include <string.h>
#include "device/device.h"

void *__real_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);
void *__wrap_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label);

void *__wrap_dev_alloc(struct device *dev, int64_t bytes, enum live_set set, const char *label)
{
    return __real_dev_alloc(dev, bytes + !strcmp(label, "tile of logits"), set, label);
}
