package sandbox_test

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// targets contains the files, sockets and processes that a hostile program tries to access.
type targets struct {
	Own, Data, Token, Key, Journal, Other, Config, Policy, Cert, Secret, Program string
	Socket, Abstract                                                             string
	Victim                                                                       int
	Root                                                                         bool
}

// attempts does what a hostile program would try. It returns the results of the attempts that the kernel did not
// refuse, by the name of the attempt.
func attempts(at targets) map[string]string {
	got := make(map[string]string)
	for _, part := range []func(targets, map[string]string){readsFiles, writesFiles, replaces, readsProcesses, interferes, connects, links, inherits, asRoot} {
		part(at, got)
	}
	nested(at, got)
	return got
}

func readsFiles(at targets, got map[string]string) {
	for name, path := range map[string]string{
		"read token": at.Token, "read key": at.Key, "read journal": at.Journal, "read another's": at.Other, "read config": at.Config,
		"read policy": at.Policy, "read certificate": at.Cert, "read secret": at.Secret,
	} {
		if raw, err := os.ReadFile(path); err == nil && len(raw) > 0 {
			got[name] = string(raw)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(at.Token)); err == nil && len(entries) > 0 {
		got["list tokens"] = entries[0].Name()
	}
}

func writesFiles(at targets, got map[string]string) {
	for name, path := range map[string]string{"write journal": at.Journal, "write policy": at.Policy, "write config": at.Config, "write program": at.Program} {
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err == nil {
			_ = f.Close()
			got[name] = path
		}
	}
	if os.Truncate(at.Key, 0) == nil {
		got["truncate key"] = at.Key
	}
	if os.WriteFile(filepath.Join(at.Data, "planted"), []byte("x"), 0o600) == nil {
		got["plant"] = at.Data
	}
}

func replaces(at targets, got map[string]string) {
	for path := at.Data; path != "/"; path = filepath.Dir(path) {
		if os.Rename(path, path+".moved") == nil {
			got["rename "+filepath.Base(path)] = path
			_ = os.Rename(path+".moved", path)
		}
		if unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, at.Own, unix.RENAME_EXCHANGE) == nil {
			got["exchange "+filepath.Base(path)] = path
			_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, at.Own, unix.RENAME_EXCHANGE)
		}
	}
	for name, path := range map[string]string{"config": at.Config, "policy": at.Policy, "program": at.Program, "secret": at.Secret} {
		mine := filepath.Join(at.Own, "mine")
		_ = os.WriteFile(mine, []byte("mine"), 0o600)
		if os.Rename(mine, path) == nil {
			got["replace "+name] = path
		}
		if os.Rename(path, path+".moved") == nil {
			got["move "+name] = path
			_ = os.Rename(path+".moved", path)
		}
	}
}

func readsProcesses(at targets, got map[string]string) {
	for _, pid := range []string{strconv.Itoa(at.Victim), "1", strconv.Itoa(os.Getppid())} {
		for _, name := range []string{"environ", "mem", "maps", "root" + at.Token, "cwd/token", "fd/0"} {
			file, err := os.Open("/proc/" + pid + "/" + name)
			if err != nil {
				continue
			}
			n, err := file.ReadAt(make([]byte, 1), 0)
			_ = file.Close()
			if name == "mem" || n > 0 || err == nil {
				got["proc "+name] = pid
			}
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if raw, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline"); err == nil && strings.Contains(string(raw), "victim-of-the-test") {
			got["see process"] = entry.Name()
		}
	}
}

func interferes(at targets, got map[string]string) {
	if unix.PtraceSeize(at.Victim) == nil {
		_ = unix.PtraceDetach(at.Victim)
		got["ptrace"] = "seized"
	}
	if os.Getppid() > 0 && unix.PtraceSeize(os.Getppid()) == nil {
		got["ptrace parent"] = "seized"
	}
	buf := make([]byte, 1)
	local := []unix.Iovec{{Base: &buf[0], Len: 1}}
	remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&victimByte)), Len: 1}}
	if n, err := unix.ProcessVMReadv(at.Victim, local, remote, 0); err == nil && n == 1 {
		got["process_vm_readv"] = "read"
	}
	var limits unix.Rlimit
	if unix.Prlimit(at.Victim, unix.RLIMIT_NOFILE, nil, &limits) == nil && unix.Prlimit(at.Victim, unix.RLIMIT_NOFILE, &limits, nil) == nil {
		got["limits"] = fmt.Sprint(limits.Cur)
	}
	if unix.Setpriority(unix.PRIO_PROCESS, at.Victim, 19) == nil {
		got["priority"] = "lowered"
	}
	if syscall.Kill(at.Victim, syscall.SIGUSR1) == nil { // the signal ends the victim
		got["signal"] = "sent"
	}
	if f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		_ = f.Close()
		got["terminal"] = "opened"
	}
	limit := unix.Rlimit{}
	if unix.Getrlimit(unix.RLIMIT_CORE, &limit) == nil && limit.Max > 0 {
		got["dump core"] = fmt.Sprint(limit.Max)
	}
}

// victimByte has the same address in every process of this program, because the program is loaded at a fixed address.
var victimByte = byte('v')

func connects(at targets, got map[string]string) {
	for name, addr := range map[string]string{"path socket": at.Socket, "abstract socket": at.Abstract} {
		if conn, err := net.Dial("unix", addr); err == nil {
			_ = conn.Close()
			got[name] = addr
		}
	}
}

func links(at targets, got map[string]string) {
	soft, hard := filepath.Join(at.Own, "soft"), filepath.Join(at.Own, "hard")
	_ = os.Symlink(at.Token, soft)
	if raw, err := os.ReadFile(soft); err == nil && len(raw) > 0 {
		got["symbolic link"] = string(raw)
	}
	if os.Link(at.Token, hard) == nil {
		got["hard link"] = hard
	}
	handle, id, err := unix.NameToHandleAt(unix.AT_FDCWD, at.Data, 0)
	if err == nil {
		dir, err := os.Open(filepath.Dir(at.Own))
		if err == nil {
			if fd, err := unix.OpenByHandleAt(int(dir.Fd()), handle, unix.O_RDONLY); err == nil && at.Root {
				if token, err := unix.Openat(fd, "tokens/operator", unix.O_RDONLY, 0); err == nil {
					_ = unix.Close(token)
					got["handle"] = fmt.Sprint(id)
				}
			}
			_ = dir.Close()
		}
	}
}

func inherits(at targets, got map[string]string) {
	for fd := range 64 {
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && (strings.HasPrefix(target, at.Data) || strings.Contains(target, "order")) {
			got["inherited"] = target
		}
	}
}

// asRoot makes attempts that only root can make: it tries to read the disk directly, and to change kernel settings that
// start programs outside the sandbox.
func asRoot(at targets, got map[string]string) {
	if !at.Root {
		return
	}
	for _, path := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"} {
		if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			_ = f.Close()
			got["setting"] = path
		}
	}
	raw, _ := os.ReadFile("/proc/partitions")
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) == 4 {
			if f, err := os.Open("/dev/" + fields[3]); err == nil {
				_ = f.Close()
				got["disk"] = fields[3]
			}
		}
	}
	if unix.Mount("x", at.Own, "tmpfs", 0, "") == nil {
		_ = unix.Unmount(at.Own, 0)
		got["mount"] = at.Own
	}
	if unix.Unmount(at.Data, unix.MNT_DETACH) == nil {
		got["umount"] = at.Data
	}
}

// nested makes further attempts in a new user namespace, in which it may mount file systems.
func nested(at targets, got map[string]string) {
	raw, err := json.Marshal(at)
	if err != nil {
		return
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleEnv + "=nested", "TARGETS=" + string(raw)}
	uid, gid := max(os.Getuid(), 1), max(os.Getgid(), 1) // root is mapped only with CAP_SETFCAP
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil {
		got["nested failed"] = err.Error()
		return
	}
	var more map[string]string
	if json.Unmarshal(out, &more) == nil {
		maps.Copy(got, more)
	}
}

// unmounted runs with the privileges of a user namespace. It tries to access files below the mounts that hide them.
func unmounted(at targets) map[string]string {
	got := map[string]string{"nested ran": strconv.Itoa(os.Getuid())}
	aside, rest := filepath.Join(at.Own, "aside"), strings.TrimPrefix(at.Token, at.Data)
	_ = os.Mkdir(aside, 0o700)
	saw := func(how, token string) {
		if raw, err := os.ReadFile(token); err == nil && len(raw) > 0 {
			got["nested "+how] = string(raw)
		}
	}
	_ = unix.Mount(at.Data, aside, "", unix.MS_BIND, "")
	saw("bind", filepath.Join(aside, rest))
	_ = unix.Mount("/", aside, "", unix.MS_BIND, "")
	saw("bind of the root", filepath.Join(aside, at.Token))
	_ = unix.Mount("/", aside, "", unix.MS_BIND|unix.MS_REC, "")
	_ = unix.Unmount(filepath.Join(aside, at.Data), unix.MNT_DETACH)
	saw("unmount of a copy", filepath.Join(aside, at.Token))
	if fd, err := unix.OpenTree(unix.AT_FDCWD, filepath.Dir(at.Data), unix.OPEN_TREE_CLONE); err == nil {
		_ = unix.MoveMount(fd, "", unix.AT_FDCWD, aside, unix.MOVE_MOUNT_F_EMPTY_PATH)
		saw("tree", filepath.Join(aside, filepath.Base(at.Data), rest))
	}
	if unix.Mount("proc", aside, "proc", 0, "") == nil {
		saw("proc", filepath.Join(aside, strconv.Itoa(at.Victim), "root", at.Token))
	}
	_ = unix.Mount("x", at.Data, "", unix.MS_REMOUNT|unix.MS_BIND, "")
	for _, flags := range []int{0, unix.MNT_DETACH} {
		for path := at.Data; path != "/"; path = filepath.Dir(path) {
			if unix.Unmount(path, flags) == nil {
				got["nested unmount of "+filepath.Base(path)] = path
			}
		}
		saw("unmount", at.Token)
	}
	return got
}
