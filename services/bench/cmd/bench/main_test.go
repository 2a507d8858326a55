package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/bench"
)

func TestParse_ReadsFlags(t *testing.T) {
	t.Parallel()
	standard := options{
		Config: bench.Config{Rounds: 6, Duration: 3 * time.Second, Callers: []int{1, 32, 256}, Bin: "../bin", Peers: "../.cache/peers"},
		out:    "../docs/benchmarks.md",
	}
	for name, tc := range map[string]struct {
		args []string
		edit func(*options)
	}{
		"none":  {nil, func(*options) {}},
		"cells": {[]string{"-cells", "up,apart", "-callers", "1,8"}, func(o *options) { o.Cells, o.Callers = []string{"up", "apart"}, []int{1, 8} }},
		"quick": {[]string{"-quick"}, func(o *options) { o.Rounds, o.Duration, o.out = 2, 500*time.Millisecond, "" }},
		"what is given wins over quick": {[]string{"-quick", "-rounds", "9", "-out", "page.md"}, func(o *options) {
			o.Rounds, o.Duration, o.out = 9, 500*time.Millisecond, "page.md"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(tc.args)
			if err != nil {
				t.Fatal(err)
			}
			want := standard
			tc.edit(&want)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(options{}), cmpopts.IgnoreFields(bench.Config{}, "Self")); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParse_RefusesInvalidFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-callers", "1,many"}, {"-rounds", "x"}, {"page.md"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestCommand_RepeatsTheRun(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"make bench":                         nil,
		`make bench ARGS="-rounds 2 -quick"`: {"-rounds", "2", "-quick"},
	} {
		if got := command(args); got != want {
			t.Errorf("command(%q) is %q, want %q", args, got, want)
		}
	}
}
