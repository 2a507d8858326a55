package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// An answer holds so much and no more: who asked for more is told.
func TestAListThatMayBeCutIsNotSilent(t *testing.T) {
	t.Parallel()
	records := func(n, size int) []*gatewayv1.Record {
		out := make([]*gatewayv1.Record, n)
		for i := range out {
			out[i] = &gatewayv1.Record{Message: strings.Repeat("m", size)}
		}
		return out
	}
	for name, tt := range map[string]struct {
		asked   int32
		records []*gatewayv1.Record
		told    bool
	}{
		"full, and fewer than asked for":         {1000, records(760, 4<<10), true},
		"full, and as many as asked for":         {760, records(760, 4<<10), false},
		"fewer than asked for, and not full":     {1000, records(100, 4<<10), false},
		"fewer than asked for: there are none":   {1000, nil, false},
		"full but for one record of the longest": {1000, records(704, 4<<10), true},
	} {
		var said bytes.Buffer
		if err := (&tool{self: "sluice", out: io.Discard, errOut: &said}).printNewest(tt.records, tt.asked); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(said.String(), "with --follow any number is printed"); told != tt.told {
			t.Errorf("%s: said %q", name, said.String())
		}
	}
}
