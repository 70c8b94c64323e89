/* A disk that takes its time: holds the syncs of the store's log, and lets them pass one by one.
 *
 * In the folder SWITCHBOARD_TEST_GATE: `shut` holds them, `pass` lets one through, `held` has a byte for each that was held.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_log(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path);
    return length > 4 && memcmp(path + length - 4, "-wal", 4) == 0;
}

static void wait_at(const char *gate) {
    char shut[4096], pass[4096], held[4096];
    snprintf(shut, sizeof shut, "%s/shut", gate);
    snprintf(pass, sizeof pass, "%s/pass", gate);
    snprintf(held, sizeof held, "%s/held", gate);
    if (access(shut, F_OK) != 0) return;
    int note = open(held, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (note < 0 || write(note, ".", 1) != 1) abort();
    close(note);
    while (access(shut, F_OK) == 0 && unlink(pass) != 0) usleep(1000);
}

int fdatasync(int file) {
    const char *gate = getenv("SWITCHBOARD_TEST_GATE");
    if (gate && is_log(file)) wait_at(gate);
    return (int)syscall(SYS_fdatasync, file);
}
