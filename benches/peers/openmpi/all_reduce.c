/* All-reduce (f32, sum) of Open MPI, timed as `allfold bench` times it: warm up, meet, a loop of calls, the mean over
 * ranks. One JSON line per size and form, as records are. Usage: mpirun -n N ./all_reduce BEGIN END FACTOR */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, wrong = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4) {
        if (rank == 0) fprintf(stderr, "usage: all_reduce BEGIN END FACTOR\n");
        MPI_Finalize();
        return 2;
    }
    long begin = atol(argv[1]), end = atol(argv[2]), factor = atol(argv[3]);
    for (long bytes = begin; bytes <= end; bytes *= factor) {
        long count = bytes / 4;
        float *in = malloc(bytes), *out = malloc(bytes);
        long calls = 64L << 20, warmup;
        calls = calls / (bytes > 4096 ? bytes : 4096);
        if (calls < 10) calls = 10;
        if (calls > 4000) calls = 4000;
        warmup = calls / 4 + 2;
        for (int in_place = 0; in_place <= 1; in_place++) {
            for (long i = 0; i < count; i++) in[i] = out[i] = in_place ? 0.0f : rank + 1.0f;
            const void *from = in_place ? MPI_IN_PLACE : (void *)in;
            for (long i = 0; i < warmup; i++) MPI_Allreduce(from, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (long i = 0; i < calls; i++) MPI_Allreduce(from, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            double us = (MPI_Wtime() - start) / calls * 1e6, mean;
            float want = in_place ? 0.0f : size * (size + 1) / 2.0f;
            for (long i = 0; i < count; i++) wrong |= out[i] != want;
            MPI_Reduce(&us, &mean, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
            mean /= size;
            if (rank == 0)
                printf("{\"schema\": 1, \"kind\": \"peer\", \"measured\": true, \"backend\": \"open_mpi\", "
                       "\"collective\": \"all_reduce\", \"ranks\": %d, \"dtype\": \"f32\", \"op\": \"sum\", "
                       "\"bytes\": %ld, \"in_place\": %s, \"iterations\": %ld, \"time_us\": %.3f, "
                       "\"algbw_gbps\": %.3f}\n",
                       size, bytes, in_place ? "true" : "false", calls, mean, bytes / mean / 1e3);
        }
        free(in);
        free(out);
    }
    if (wrong) fprintf(stderr, "wrong results on rank %d\n", rank);
    MPI_Finalize();
    return wrong;
}
