package wasmmeter_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// TestMetered_TrapUsesAllFuel checks that a guest that traps or recurses endlessly is charged for all the fuel that it
// received.
func TestMetered_TrapUsesAllFuel(t *testing.T) {
	t.Parallel()
	run := parts{7: {1, 3, 'r', 'u', 'n', 0, 0}}
	for name, c := range map[string]struct {
		code []byte
		over parts
		err  error
	}{
		"a trap":                    {[]byte{0x00, 0x0b}, run, nil},
		"calls without end":         {[]byte{0x10, 0, 0x0b}, run, errStack},
		"calls by a table":          {[]byte{0x41, 0, 0x11, 0, 0, 0x0b}, parts{4: {1, 0x70, 0, 1}, 7: run[7], 9: {1, 0, 0x41, 0, 0x0b, 1, 0}}, errStack},
		"a start without end":       {[]byte{0x10, 0, 0x0b}, parts{8: {0}}, errStack},
		"a frame that is too large": {nil, parts{7: run[7], 10: append(uleb([]byte{1}, 1<<20), slices.Concat([]byte{0, 0x10, 0}, bytes.Repeat([]byte{0x01}, 1<<20-4), []byte{0x0b})...)}, errStack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, wazero.NewRuntimeConfigCompiler())
			in, err := e.Instantiate(t.Context(), meterAt(t, build(c.code, c.over), wasmmeter.Grain))
			if err == nil {
				_, err = in.ExportedFunction("run").Call(t.Context())
			}
			if err == nil || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("the guest ended with %v, want %v", err, c.err)
			}
			if in != nil && e.used(in) != e.granted {
				t.Errorf("the guest used %d of %d", e.used(in), e.granted)
			}
		})
	}
}
