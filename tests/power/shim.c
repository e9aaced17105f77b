/* Preloaded into a process, it records all changes that the process makes to the files of one file system, in their
 * order. From the record, tests/power/disk.py computes what a loss of power could leave.
 *
 * POWER_RECORD   the file to append to; several processes may share it
 * POWER_ROOT     a folder on the file system that is watched
 *
 * An entry is a head (below) and `size - sizeof(head)` more bytes. Files and folders are identified by their inode, so
 * a name is always one name in one folder. An entry is written after its call, under a lock that is held during the
 * call: the order of entries is the order of the changes. A sync does not hold the lock; its entry has the length of the
 * record when the sync began, because it keeps no later changes.
 *
 * It does not see system calls that bypass libc's functions, or that libc makes itself (the writes of stdio).
 * tests/power checks that the record explains every byte of the folder, so a missed change is noticed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MADE_FILE = 1, MADE_FOLDER, LINKED, REMOVED, RENAMED, WRITTEN, TRUNCATED, SYNCED, UNKNOWN };

struct head {
    uint32_t size; /* of the whole entry */
    uint32_t kind;
    uint64_t inode; /* of the file; if a name was changed: of the folder */
    uint64_t other; /* made, linked: the named file's inode; renamed: the new name's folder; written: the position;
                       truncated: the length; synced: the length of the record when it began */
};

static int record = -1;
static dev_t device;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void open_record(void) {
    record = syscall(SYS_openat, AT_FDCWD, getenv("POWER_RECORD"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (record < 0) {
        perror("tests/power/shim.c");
        abort();
    }
}

static void forked(void) { /* opens the record anew: otherwise parent and child would share one lock (flock(2)) */
    syscall(SYS_close, record);
    open_record();
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void start(void) {
    struct stat found;
    if (getenv("POWER_RECORD") == NULL || getenv("POWER_ROOT") == NULL) return;
    if (stat(getenv("POWER_ROOT"), &found) != 0) {
        perror("tests/power/shim.c");
        abort();
    }
    device = found.st_dev;
    open_record();
    pthread_atfork(NULL, NULL, forked);
}

static void lock(void) {
    pthread_mutex_lock(&mutex); /* among threads */
    while (flock(record, LOCK_EX) != 0 && errno == EINTR) {} /* among processes */
}

static void unlock(void) {
    int error = errno;
    flock(record, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = error;
}

/* Writes an entry. Call it under the lock. */
static void note(int kind, uint64_t inode, uint64_t other, const struct iovec *parts, int count, size_t bytes) {
    int error = errno;
    struct head head = {sizeof head + bytes, kind, inode, other};
    struct iovec cut[IOV_MAX];
    size_t left = bytes;
    int used = 0;
    for (; used < count && left > 0; left -= cut[used++].iov_len)
        cut[used] = (struct iovec){parts[used].iov_base, parts[used].iov_len < left ? parts[used].iov_len : left};
    if (syscall(SYS_write, record, &head, sizeof head) != sizeof head ||
        (used > 0 && syscall(SYS_writev, record, cut, used) != (long)bytes)) {
        fputs("tests/power/shim.c: the record could not be written\n", stderr);
        abort();
    }
    errno = error;
}

static void note_name(int kind, uint64_t folder, uint64_t other, const char *name) {
    struct iovec part = {(void *)name, strlen(name)};
    note(kind, folder, other, &part, 1, part.iov_len);
}

/* Finds the folder that a path is in, and its last name. Returns whether that folder is recorded. */
static int place(int at, const char *path, struct stat *folder, char *name) {
    char above[PATH_MAX];
    size_t length = strnlen(path, PATH_MAX), cut;
    if (record < 0 || length == 0 || length >= PATH_MAX) return 0;
    memcpy(above, path, length + 1);
    while (length > 1 && above[length - 1] == '/') above[--length] = 0;
    for (cut = length; cut > 0 && above[cut - 1] != '/'; cut--) {}
    if (length - cut > NAME_MAX) return 0;
    strcpy(name, above + cut);
    strcpy(above + cut, ".");
    return fstatat(at, above, folder, 0) == 0 && folder->st_dev == device;
}

static int watched(int fd, struct stat *found) {
    return record >= 0 && fstat(fd, found) == 0 && found->st_dev == device && S_ISREG(found->st_mode);
}

/* ---- names */

static int open_at(int at, const char *path, int flags, mode_t mode) {
    struct stat folder, before, after;
    char name[NAME_MAX + 1];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !place(at, path, &folder, name))
        return syscall(SYS_openat, at, path, flags, mode);
    lock();
    int existed = fstatat(at, path, &before, 0) == 0;
    int fd = syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && fstat(fd, &after) == 0 && S_ISREG(after.st_mode)) {
        if (!existed) note_name(MADE_FILE, folder.st_ino, after.st_ino, name);
        else if (flags & O_TRUNC) note(TRUNCATED, after.st_ino, 0, NULL, 0, 0);
    }
    unlock();
    return fd;
}

#define MODE(flags, mode)                          \
    mode_t mode = 0;                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {       \
        va_list more;                              \
        va_start(more, flags);                     \
        mode = va_arg(more, mode_t);               \
        va_end(more);                              \
    }

int open(const char *path, int flags, ...) { MODE(flags, mode) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, mode) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, mode) return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, mode) return open_at(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int mkdirat(int at, const char *path, mode_t mode) {
    struct stat folder, made;
    char name[NAME_MAX + 1];
    if (!place(at, path, &folder, name)) return syscall(SYS_mkdirat, at, path, mode);
    lock();
    int result = syscall(SYS_mkdirat, at, path, mode);
    if (result == 0 && fstatat(at, path, &made, 0) == 0) note_name(MADE_FOLDER, folder.st_ino, made.st_ino, name);
    unlock();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int old_at, const char *old, int at, const char *path, int flags) {
    struct stat folder, made;
    char name[NAME_MAX + 1];
    if (!place(at, path, &folder, name)) return syscall(SYS_linkat, old_at, old, at, path, flags);
    lock();
    int result = syscall(SYS_linkat, old_at, old, at, path, flags);
    if (result == 0 && fstatat(at, path, &made, 0) == 0) note_name(LINKED, folder.st_ino, made.st_ino, name);
    unlock();
    return result;
}
int link(const char *old, const char *path) { return linkat(AT_FDCWD, old, AT_FDCWD, path, 0); }

int symlinkat(const char *target, int at, const char *path) {
    struct stat folder;
    char name[NAME_MAX + 1];
    if (!place(at, path, &folder, name)) return syscall(SYS_symlinkat, target, at, path);
    lock();
    int result = syscall(SYS_symlinkat, target, at, path);
    if (result == 0) note_name(UNKNOWN, folder.st_ino, 0, "symlink");
    unlock();
    return result;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int at, const char *path, int flags) {
    struct stat folder;
    char name[NAME_MAX + 1];
    if (!place(at, path, &folder, name)) return syscall(SYS_unlinkat, at, path, flags);
    lock();
    int result = syscall(SYS_unlinkat, at, path, flags);
    if (result == 0) note_name(REMOVED, folder.st_ino, 0, name);
    unlock();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    int result = unlink(path);
    return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int renameat2(int old_at, const char *old, int at, const char *path, unsigned flags) {
    struct stat from, into;
    char names[2 * NAME_MAX + 2], name[NAME_MAX + 1];
    if (!place(old_at, old, &from, names) || !place(at, path, &into, name))
        return syscall(SYS_renameat2, old_at, old, at, path, flags);
    strcat(strcat(names, "/"), name);
    lock();
    int result = syscall(SYS_renameat2, old_at, old, at, path, flags);
    if (result == 0) note_name(flags & RENAME_EXCHANGE ? UNKNOWN : RENAMED, from.st_ino, into.st_ino, names);
    unlock();
    return result;
}
int renameat(int old_at, const char *old, int at, const char *path) { return renameat2(old_at, old, at, path, 0); }
int rename(const char *old, const char *path) { return renameat2(AT_FDCWD, old, AT_FDCWD, path, 0); }

/* ---- content */

/* `position` < 0: the file's own position. */
static ssize_t write_at(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    struct stat found;
    int here = position < 0, seen = watched(fd, &found);
    ssize_t done;
    if (seen) lock();
    if (here && count == 1 && flags == 0) done = syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len);
    else if (here && flags == 0) done = syscall(SYS_writev, fd, parts, count);
    else done = syscall(SYS_pwritev2, fd, parts, count, position, 0, flags);
    if (seen) {
        if (done > 0) {
            if (here) position = lseek(fd, 0, SEEK_CUR) - done;
            if (here || !(fcntl(fd, F_GETFL) & O_APPEND)) note(WRITTEN, found.st_ino, position, parts, count, done);
            else note_name(UNKNOWN, found.st_ino, 0, "pwrite to a file opened with O_APPEND");
        }
        unlock();
    }
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    return write_at(fd, &part, 1, -1, 0);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t position) {
    struct iovec part = {(void *)data, size};
    return write_at(fd, &part, 1, position, 0);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return write_at(fd, parts, count, -1, 0); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return write_at(fd, parts, count, at, 0); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return write_at(fd, parts, count, at, flags);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return pwrite(fd, data, size, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { return pwritev(fd, parts, count, at); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    return pwritev2(fd, parts, count, at, flags);
}

/* Records a call for which the model has no rule. The test fails if the model follows this file. */
static void unknown(int fd, const char *call) {
    struct stat found;
    if (watched(fd, &found)) {
        lock();
        note_name(UNKNOWN, found.st_ino, 0, call);
        unlock();
    }
}

int ftruncate(int fd, off_t size) {
    struct stat found;
    int seen = watched(fd, &found);
    if (seen) lock();
    int result = syscall(SYS_ftruncate, fd, size);
    if (seen) {
        if (result == 0) note(TRUNCATED, found.st_ino, size, NULL, 0, 0);
        unlock();
    }
    return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int truncate(const char *path, off_t size) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int result = ftruncate(fd, size), error = errno;
    close(fd);
    errno = error;
    return result;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

int fallocate(int fd, int mode, off_t position, off_t size) {
    if (mode != FALLOC_FL_KEEP_SIZE) unknown(fd, "fallocate");
    return syscall(SYS_fallocate, fd, mode, position, size);
}
int fallocate64(int fd, int mode, off64_t position, off64_t size) { return fallocate(fd, mode, position, size); }
int posix_fallocate(int fd, off_t at, off_t size) { return fallocate(fd, 0, at, size) == 0 ? 0 : errno; }
int posix_fallocate64(int fd, off64_t at, off64_t size) { return posix_fallocate(fd, at, size); }
ssize_t copy_file_range(int from, off64_t *from_at, int into, off64_t *at, size_t size, unsigned flags) {
    unknown(into, "copy_file_range");
    return syscall(SYS_copy_file_range, from, from_at, into, at, size, flags);
}
ssize_t sendfile(int into, int from, off_t *at, size_t size) {
    unknown(into, "sendfile");
    return syscall(SYS_sendfile, into, from, at, size);
}
ssize_t sendfile64(int into, int from, off64_t *at, size_t size) { return sendfile(into, from, at, size); }
void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t position) {
    if ((flags & MAP_TYPE) != MAP_PRIVATE && (protection & PROT_WRITE) && fd >= 0) unknown(fd, "mmap");
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, position);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t position) {
    return mmap(at, size, protection, flags, fd, position);
}

/* ---- syncs */

static int sync_fd(long call, int fd) {
    struct stat found;
    if (record < 0 || fstat(fd, &found) != 0 || found.st_dev != device) return syscall(call, fd);
    lock();
    off_t began = lseek(record, 0, SEEK_END);
    unlock();
    int result = syscall(call, fd);
    if (result == 0) {
        lock();
        note(SYNCED, found.st_ino, began, NULL, 0, 0);
        unlock();
    }
    return result;
}
int fsync(int fd) { return sync_fd(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_fd(SYS_fdatasync, fd); }
/* sync_file_range, sync and syncfs are not recorded: the first promises nothing (its manual), the others are not used. */
