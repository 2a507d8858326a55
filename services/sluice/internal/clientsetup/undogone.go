package clientsetup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// Scan reads the files of all clients. These are the files of the user, the files in projects that these files name,
// and the files that `init` has changed. If project is not empty, Scan also reads the files in this directory.
func (s *State) Scan(sys clientconfig.System, project string) []Found {
	clients := clientconfig.Clients()
	out := Scan(sys, clients, project)
	dirs := Projects(out)
	for _, c := range s.Files {
		if c.Within != "" {
			dirs = append(dirs, c.Within)
		}
	}
	add := func(found Found) {
		if !slices.ContainsFunc(out, func(f Found) bool { return f.File.Path == found.File.Path }) {
			out = append(out, found)
		}
	}
	for _, dir := range dirs {
		for _, f := range Scan(sys, clients, dir) {
			add(f)
		}
	}
	for _, c := range s.Files { // the environment may now lead to files that `init` did not change
		client, _ := clientconfig.Find(c.Client)
		if f, exists := read(clientconfig.File{Client: client, Path: c.Path, Project: c.Within, Layout: c.Manifest.Layout}); exists {
			add(f)
		}
	}
	return out
}

// A place identifies an entry in a file.
type place struct{ file, entry string }

func placeOf(file string, path []string) place { return place{file, strings.Join(path, "\x00")} }

// recordStarts sets s.starts. It omits an entry if its original form can't be decrypted. In that case, undo keeps more
// records than necessary.
func (s *undoRun) recordStarts() {
	s.starts = make(map[place]clientconfig.Relay)
	for _, change := range s.Files {
		manifest, err := s.manifest(change)
		if err != nil {
			continue
		}
		edited, _ := manifest.Edited() // empty if there is an error
		for _, e := range edited {
			s.starts[placeOf(change.Path, e.Path)] = relayOf(change, e)
		}
	}
}

// relayOf returns the server that an entry written by `init` starts.
func relayOf(change FileChange, k configedit.Kept) clientconfig.Relay {
	if k.Ours == nil || len(k.Path) == 0 {
		return clientconfig.Relay{}
	}
	client, _ := clientconfig.Find(change.Client)
	entry := client.ReadEntry(k.Path[len(k.Path)-1], k.Ours)
	if entry.Relay != nil {
		return *entry.Relay
	}
	var r clientconfig.Relay
	if at := slices.Index(entry.Args, "--server"); at >= 0 && at+1 < len(entry.Args) {
		r.Server = entry.Args[at+1]
	}
	return r
}

// mayReturn returns the reason why a missing entry may only have been renamed or moved, or "". It always returns "" if
// undo is forced, or if `init` added the entry.
func (s *undoRun) mayReturn(change FileChange, gone configedit.Kept) string {
	if s.Force || gone.Old == nil {
		return ""
	}
	if reason := unreachable(change); reason != "" {
		return reason
	}
	server := relayOf(change, gone)
	for _, f := range s.Scanned {
		for _, e := range f.Entries {
			recorded := s.starts[placeOf(f.File.Path, e.Path)]
			if startsServer(e, server) && (recorded.Server != server.Server || recorded.URL != server.URL) {
				return fmt.Sprintf("%s in %s starts its server", e.Name, f.File.Path)
			}
		}
	}
	for _, f := range s.Scanned {
		if f.Err != nil && mayName(f.File.Path, server.Server) {
			return fmt.Sprintf("an entry in %s may start its server, but this file can't be read", f.File.Path)
		}
	}
	return ""
}

// unreachable returns the reason why a missing file may come back, or "" if the file exists or was simply removed.
func unreachable(change FileChange) string {
	info, err := os.Lstat(change.Path)
	switch {
	case err == nil && info.Mode()&fs.ModeSymlink == 0:
		return ""
	case err == nil:
		if _, err := os.Stat(change.Path); err == nil {
			return ""
		}
		return "the file is a link, and its target does not exist now"
	case change.Link:
		return "the file was a link, which does not exist now"
	}
	if dir := filepath.Dir(change.Path); !exists(dir) {
		return fmt.Sprintf("the folder %s does not exist now", dir)
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startsServer reports whether an entry starts the given server of a mesh. It also recognizes an entry whose arguments
// and program were changed by a person.
func startsServer(e clientconfig.Entry, server clientconfig.Relay) bool {
	if e.Relay != nil {
		return e.Relay.Server == server.Server && e.Relay.URL == server.URL
	}
	words := strings.Fields(strings.Join(append([]string{e.Command}, e.Args...), " "))
	if server.Server == "" || !slices.Contains(words, "stdio") {
		return false
	}
	at := slices.Index(words, "--server")
	return at >= 0 && at+1 < len(words) && words[at+1] == server.Server || slices.Contains(words, "--server="+server.Server)
}

// mayName reports whether a file that can't be parsed may contain an entry for a server of a mesh.
func mayName(path, server string) bool {
	raw, err := ReadFile(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return bytes.Contains(raw, []byte("stdio")) && bytes.Contains(raw, []byte(server))
}

// settled waits as long as a client needs to write a file. Then it returns an error unless the file still has the given
// content. If the content is nil, the file must still be missing.
func (s *undoRun) settled(ctx context.Context, path string, now []byte) error {
	wait := s.settle
	if len(now) == 0 {
		wait = max(wait, settleEmpty)
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	again, err := ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && now == nil, err == nil && now != nil && bytes.Equal(again, now):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return atomicfile.ErrChanged
}
