package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// probeTimeout is the maximum duration of the test that finds out whether a sandbox mechanism works on this system.
const probeTimeout = 10 * time.Second

// order contains the input of the launcher, which is sent through a pipe so that other processes can't see it.
type order struct {
	By      mechanism
	Rules   Rules
	Command Command
	// Try makes the launcher write a report to standard output instead of starting the program.
	Try bool
	// AsRoot is true if this process may act on behalf of every user, as root may.
	AsRoot bool
}

// orderFD is the file descriptor from which the launcher reads its order.
const orderFD = 3

// start starts the launcher. The launcher receives its order only after join has returned.
func (s *Sandbox) start(c Command, stdio [3]*os.File, sys *syscall.SysProcAttr, join func(pid int), try bool) (*os.Process, error) {
	o := order{By: s.mechanism, Rules: s.rules, Command: c, Try: try, AsRoot: isRoot()}
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("write to the launcher: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("write to the launcher: %w", err)
	}
	defer write.Close() //nolint:errcheck // already closed if the order was written
	files := []*os.File{stdio[0], stdio[1], stdio[2], read}
	if s.mechanism == byNamespaces {
		instance, wake, err := s.launcher.notices.subscribe()
		if err != nil {
			_ = read.Close()
			return nil, err
		}
		defer wake.Close() //nolint:errcheck // the launcher has a copy
		files = append(files, instance, wake)
	}
	var process *os.Process
	if s.mechanism == byNamespaces {
		r := startRequest{Setsid: sys.Setsid, Pdeathsig: sys.Pdeathsig, AsRoot: o.AsRoot, Try: try}
		process, err = s.launcher.starter.start(s.launcher.argv, r, files)
	} else {
		process, err = os.StartProcess(s.launcher.argv[0], s.launcher.argv, &os.ProcAttr{Dir: "/", Env: []string{}, Files: files, Sys: sys})
	}
	_ = read.Close() // the launcher has a copy
	if err != nil {
		return nil, err
	}
	join(process.Pid)
	// If the launcher exits before it has read its whole order, it writes the reason to its standard error. Therefore
	// this function ignores the error of Write.
	_, _ = write.Write(raw)
	return process, nil
}

// ownNamespaces makes a child process the first process of new user, mount and process namespaces. User and group ids
// are the same inside and outside the namespaces.
func ownNamespaces(sys *syscall.SysProcAttr, asRoot bool) (err error) {
	sys.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID
	sys.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_SYS_RESOURCE}
	if !asRoot {
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		return nil
	}
	sys.GidMappingsEnableSetgroups = true
	if sys.UidMappings, err = sameIDs("/proc/self/uid_map"); err != nil {
		return err
	}
	sys.GidMappings, err = sameIDs("/proc/self/gid_map")
	return err
}

// sameIDs returns mappings that map every id in a file to itself.
func sameIDs(file string) ([]syscall.SysProcIDMap, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var maps []syscall.SysProcIDMap
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("a line of %s does not have three columns", file)
		}
		inside, err1 := strconv.Atoi(fields[0])
		size, err2 := strconv.Atoi(fields[2])
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		maps = append(maps, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return maps, nil
}

// try starts a launcher that applies the sandbox's rules and writes a report. The launcher starts no program.
func (s *Sandbox) try() (Report, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return Report{}, err
	}
	defer null.Close() //nolint:errcheck // nothing is written to it
	outR, outW, err := os.Pipe()
	if err != nil {
		return Report{}, err
	}
	defer outR.Close() //nolint:errcheck // read until its end
	process, err := s.start(Command{Dir: "/"}, [3]*os.File{null, outW, outW}, &syscall.SysProcAttr{Setsid: true}, func(int) {}, true)
	_ = outW.Close() // the launcher has a copy
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = process.Kill() })()
	var text bytes.Buffer
	_, err = bufio.NewReader(outR).WriteTo(&text)
	if s.mechanism != byNamespaces { // otherwise the starter waits for the process
		_, werr := process.Wait()
		err = errors.Join(err, werr)
	}
	if err != nil {
		return Report{}, err
	}
	return parseReport(text.String())
}

// parseReport parses the output of a launcher that was started to write a report.
func parseReport(text string) (r Report, err error) {
	if why, failed := strings.CutPrefix(text, errorPrefix); failed {
		first, _, _ := strings.Cut(why, "\n")
		return Report{}, fmt.Errorf("%.300s", first)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Report{}, fmt.Errorf("read the launcher's report: %w", err)
	}
	return r, nil
}

// isRoot reports whether this process may act on behalf of every user.
func isRoot() bool {
	const asAnyone = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_DAC_OVERRIDE
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return os.Geteuid() == 0 && unix.Capget(&header, &data[0]) == nil && data[0].Effective&asAnyone == asAnyone
}
