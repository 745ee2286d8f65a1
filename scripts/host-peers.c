// all_reduce of MPI among processes of one machine, as JSON lines; compiled and started by host-peers.sh.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

// ARGUMENTS: samples, then sizes in bytes.
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, wrong = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3 || atoi(argv[1]) < 1) {
        if (rank == 0) fprintf(stderr, "usage: %s SAMPLES BYTES...\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int samples = atoi(argv[1]);
    double *mine = malloc(sizeof(double) * (size_t)samples), *slowest = malloc(sizeof(double) * (size_t)samples);
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    for (int i = 0; version[i]; ++i)
        if (version[i] == ',' || version[i] == '\n' || version[i] == '"') version[i] = 0;
    for (int argument = 2; argument < argc; ++argument) {
        long bytes = atol(argv[argument]);
        int count = (int)(bytes / (long)sizeof(float));
        float *input = malloc(sizeof(float) * (size_t)(count + 1)), *output = malloc(sizeof(float) * (size_t)(count + 1));
        if (count < 1 || !mine || !slowest || !input || !output) MPI_Abort(MPI_COMM_WORLD, 3);
        for (int i = 0; i < count; ++i) input[i] = (float)(i % 7 + rank);
        int operations = bytes < 1 << 20 ? 10 : 3;
        for (int sample = -3; sample < samples; ++sample) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (int i = 0; i < operations; ++i)
                MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (sample >= 0) mine[sample] = (MPI_Wtime() - start) * 1e6 / operations;
        }
        int differs = 0, any;
        for (int i = 0; i < count; ++i) differs |= output[i] != (float)(i % 7 * ranks + ranks * (ranks - 1) / 2);
        MPI_Allreduce(&differs, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(mine, slowest, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        qsort(slowest, (size_t)samples, sizeof(double), by_value);
        wrong |= any;
        if (rank == 0) {
            printf("{\"op\": \"all_reduce\", \"runtime\": \"%s\", \"ranks\": %d, \"dtype\": \"f32\", \"bytes\": %ld, "
                   "\"us_median\": %.2f, \"us_p99\": %.2f, \"operations\": %d, \"verified\": %s}\n",
                   version, ranks, count * (long)sizeof(float), slowest[samples / 2],
                   slowest[(int)((samples - 1) * 0.99)], operations, any ? "false" : "true");
            fflush(stdout);
        }
        free(input);
        free(output);
    }
    free(mine);
    free(slowest);
    MPI_Finalize();
    return wrong;
}
