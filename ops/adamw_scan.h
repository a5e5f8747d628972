/* The scan of all gradients before a step: their global norm, and whether all of them are finite.
 * Private to the family. */
#pragma once
#include "ops/adamw.h"

void adamw_scan_open(struct adamw *a);
void adamw_scan_close(struct adamw *a);

/* Where it runs. */
struct stream *adamw_scan_stream(struct adamw *a);

/* Scans every tensor, waits, and fills norm, nonfinite, first_tensor and skipped of the report:
 * over all ranks, so that they decide alike. */
enum dev_status adamw_scan_run(struct adamw *a);

/* The factor that the options and the norm found give, in FP64. */
double adamw_scan_factor(const struct adamw *a);
