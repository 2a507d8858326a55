package config_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/observe"
)

func TestLoad_RefusesObservationsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"mode: observe": "until: is required with mode: observe",
		"mode: watch":   `sluice.yaml:1:7: mode: unknown mode "watch"; write observe, or remove it to enforce`,
		"servers: {s: {grpc: {target: wasmagent}, mode: observe, until: 2999-01-01}}": "sluice.yaml:1:64: servers.s.until: is more than 30 days from now",
		"servers: {s: {grpc: {target: wasmagent}, until: 2020-01-01}}":                "servers.s.until: has no effect without mode: observe; add mode: observe, or remove until",
		"mode: observe\nuntil: tomorrow":                                              "sluice.yaml:2:8: until: wanted a date or a time; write it as 2026-12-20 or 2026-12-20T18:00:00Z",
	} {
		if got := load(t, text); !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, want) }) {
			t.Errorf("%q\n got %q\nwant %q", text, got, want)
		}
	}
}

// An environment variable sets `until` to a value that is not a time. Parse refuses it.
func TestLoad_RefusesAnInvalidEndFromTheEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{"SLUICE_MODE": "observe", "SLUICE_UNTIL": "tomorrow"}
	_, err := config.Parse("sluice.yaml", []byte("policies: [p]\n"), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err == nil || !strings.Contains(err.Error(), "SLUICE_UNTIL: until: wanted a date or a time") {
		t.Errorf("Parse = %v", err)
	}
}

func TestObservationWarnings(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tomorrow := observe.Format(now.Add(24 * time.Hour).Truncate(time.Second))
	f, err := config.Parse("sluice.yaml", []byte("mode: observe\nuntil: "+tomorrow+"\nservers:\n"+
		"  a: {grpc: {target: wasmagent}, mode: observe, until: 2020-01-01}\n  b: {grpc: {target: \"x:1\"}, mode: enforce}\n"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range f.ObservationWarnings(now) {
		got = append(got, w.Error())
	}
	want := []string{
		"mode: the mesh is only observed until " + tomorrow + "; remove mode and until to enforce it",
		"servers.a.until: has passed, so the server is enforced now; remove mode and until",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
