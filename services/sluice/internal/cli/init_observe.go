package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/observe"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// An observation contains the servers for `init --observe`, which puts servers in observe mode (mode: observe). In
// observe mode, the mesh records its decisions without enforcing them.
type observation struct {
	// until is when observe mode ends for the servers that get `mode: observe` in this run.
	until time.Time
	// enforced contains the configured servers that are not in observe mode, sorted.
	enforced []string
	// ends contains the time when observe mode ends for each server that is already in observe mode.
	ends map[string]time.Time
}

// planObserve sets s.observed if --observe is set. It includes the servers of entries that already go through the mesh,
// and servers that the mesh has for another client. It omits new servers, which always get `mode: observe` with this
// flag.
func (s *setup) planObserve() error {
	s.observed = observation{ends: make(map[string]time.Time)}
	if !s.flags.observe {
		return nil
	}
	now := time.Now()
	s.observed.until = now.Add(observeFor).Truncate(time.Minute)
	if _, err := os.Stat(s.paths.Config); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f, err := config.Load(s.paths.Config, app.Env)
	if err != nil {
		return fmt.Errorf("your mesh's configuration does not load: %w", err)
	}
	mesh := observationEnd(f.Mode, f.Until, now)
	for _, name := range s.serversOfClients() {
		server, exists := f.Servers[name]
		if !exists {
			continue
		}
		end := observationEnd(server.Mode, server.Until, now)
		if mesh.After(end) {
			end = mesh
		}
		if end.IsZero() {
			s.observed.enforced = append(s.observed.enforced, name)
		} else {
			s.observed.ends[name] = end
		}
	}
	return nil
}

// observationEnd returns the time when observe mode ends, or the zero time if decisions are already enforced.
func observationEnd(mode string, until observe.Until, now time.Time) time.Time {
	if end := until.Time(); mode == observe.Observe && end.After(now) {
		return end
	}
	return time.Time{}
}

// serversOfClients returns the servers in the clients' entries, sorted.
func (s *setup) serversOfClients() []string {
	names := make(map[string]bool)
	for _, f := range s.plan.Files {
		for _, e := range f.Entries {
			if server := wrappedServer(e); server != "" && !e.Disabled {
				names[server] = true
			}
		}
	}
	for _, w := range s.plan.Wraps {
		names[w.Server] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// wrappedServer returns the server of the person's own mesh in an entry, or "" if there is none. The server might not
// exist any more.
func wrappedServer(e clientconfig.Entry) string {
	if e.Relay == nil || e.Relay.URL != "" {
		return ""
	}
	return e.Relay.Server
}

// printObserved prints the servers that are in observe mode, and when observe mode ends.
func (s *setup) printObserved() {
	if !s.flags.observe {
		return
	}
	byEnd := make(map[time.Time][]string)
	for name, end := range s.observed.ends {
		byEnd[end.Local()] = append(byEnd[end.Local()], name)
	}
	for _, name := range s.observed.enforced {
		if s.meshEdit != nil && s.meshEdit.NotObserved[name] == "" {
			byEnd[s.observed.until] = append(byEnd[s.observed.until], name)
		}
	}
	for _, server := range s.plan.New() {
		byEnd[s.observed.until] = append(byEnd[s.observed.until], server.Name)
	}
	for _, end := range slices.SortedFunc(maps.Keys(byEnd), time.Time.Compare) {
		slices.Sort(byEnd[end])
		s.printf("Until %s the mesh refuses nothing of %s. Then it enforces the policies. `%s report` shows what they would have refused, asked and limited.",
			end.Format("2006-01-02 15:04 MST"), strings.Join(byEnd[end], ", "), s.self)
	}
	s.printNotObserved()
}

// printNotObserved prints the servers for which `init` can't set `mode: observe`, because it can't edit their
// configuration.
func (s *setup) printNotObserved() {
	if s.meshEdit == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.meshEdit.NotObserved)) {
		s.printf("%s is not observed, because %s can't be edited: %s. Write `mode: observe` and `until` there.", name, s.shownPath(s.paths.Config), s.meshEdit.NotObserved[name])
	}
}

// observesMore reports whether `init` will set `mode: observe` for servers for which the mesh currently enforces the
// policies.
func (s *setup) observesMore() bool { return len(s.observed.enforced) > 0 }
