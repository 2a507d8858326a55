package mcpserver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case X3. The gateway cannot read a server's answer, because the server is too slow or there is not enough memory. The
// answer to the caller and the record both contain the reason.
func TestUnreadAnswer_RefusalNamesTheReason(t *testing.T) {
	t.Parallel()
	for why, said := range map[error]string{bodyreader.ErrSlow: "too slowly", limits.ErrMemory: "no memory"} {
		for body, code := range map[string]string{toolCall: "outcome_unknown", toolsList: "upstream_unavailable"} {
			t.Run(said+" for "+code, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newTestGateway(t)
					h := w.connect()
					w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
						return upstream.Answer{Status: 200}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, why)
					}
					if got := w.do("POST", "/mcp/files", body, h); got.code() != code || !strings.Contains(got.body, said) {
						t.Errorf("%d %s", got.status, got.body)
					}
					records := append(w.Journal.Records(journal.KindOutcome), w.Journal.Records(journal.KindRefusal)...)
					if len(records) != 1 || !strings.Contains(records[0].Message, said) {
						t.Errorf("on record is %+v", records)
					}
				})
			})
		}
	}
}
