package config

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/observe"
)

// observation contains the values of the keys `mode` and `until` at a path. The path is empty for the keys of the whole
// file.
type observation struct {
	path, kind, mode string
	until            observe.Until
}

func (f *File) observations() []observation {
	out := []observation{{kind: "mesh", mode: f.Mode, until: f.Until}}
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		s := f.Servers[name]
		out = append(out, observation{"servers." + name + ".", "server", s.Mode, s.Until})
	}
	return out
}

func (f *File) checkObservations(p *problems) {
	for _, o := range f.observations() {
		if fault := observe.Check(o.mode, o.until, time.Now()); fault != nil {
			p.addf(o.path+fault.Key, "%s; %s", fault.Message, fault.Suggestion)
		}
	}
}

// ObservationWarnings returns a warning for each key `mode` with the value `observe`: the mesh's own key and each
// server's key. The warning says when `observe` ends or, if that time is not after now, that it has ended.
func (f *File) ObservationWarnings(now time.Time) []Problem {
	var out []Problem
	for _, o := range f.observations() {
		if w := observe.Warn(o.kind, o.mode, o.until, now); w != nil {
			out = append(out, Problem{Path: o.path + w.Key, Text: w.Message + "; " + w.Suggestion})
		}
	}
	return out
}
