package cli

import (
	"bytes"
	"strings"
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// One server could not be reached, so its status contains the last error. The status of the other server contains no
// error.
func TestPrintStatus_PrintsTheLastErrorOfAServer(t *testing.T) {
	t.Parallel()
	status := &gatewayv1.GetStatusResponse{Ready: true, Servers: []*gatewayv1.ServerStatus{
		{Name: "files", Transport: "stdio", InFlight: 2},
		{Name: "web", Transport: "http", LastError: "the request never reached the server: connection refused"},
	}}
	for output, lines := range map[string][]string{
		"text": {
			"server files  stdio, 2 in flight\n",
			"server web    http, 0 in flight; last error: the request never reached the server: connection refused\n",
		},
		"json": {
			`"inFlight": 2`, `"inFlight": 0`,
			`"lastError": "the request never reached the server: connection refused"`,
		},
	} {
		var out bytes.Buffer
		if err := (&tool{self: "sluice", out: &out, output: output}).printStatus(roleAnswers{gateway: status}); err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: there is no %q in\n%s", output, line, out.String())
			}
		}
		if n := strings.Count(out.String(), "last"); n != 1 {
			t.Errorf("%s: %d servers have an error, want 1:\n%s", output, n, out.String())
		}
	}
}
