package streamable

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
)

// Case X3. A slow stream uses no memory budget between messages, even if the messages are large.
func TestReadEvents_SlowStreamUsesNoMemoryBetweenMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, err := limits.NewBudget(limits.AnswerQuotas())
		if err != nil {
			t.Fatal(err)
		}
		memory := all.Open(&limits.Owner{Server: "s"})
		defer memory.Close()
		body, w := io.Pipe()
		progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"` + strings.Repeat("x", 1<<20) + `"}}`
		go func() {
			defer w.Close()
			for range 20 {
				_, _ = io.WriteString(w, "data: "+progress+"\n\n")
				time.Sleep(time.Hour)
				_, _ = io.WriteString(w, ": still there\n\n")
			}
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":1,"result":{}}`+"\n\n")
		}()
		count := 0
		req := asking()
		req.Room = memory
		answer, err := readEvents(t.Context(), body, noSecrets, req, receivers{events: func([]byte) { count++ }})
		if err != nil || count != 20 || !answer.Result.Present() {
			t.Errorf("%d events came, and then %v", count, err)
		}
	})
}

// Case X3. A server that does not complete an event is disconnected.
func TestReadEvents_StalledEventIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, err := limits.NewBudget(limits.AnswerQuotas())
		if err != nil {
			t.Fatal(err)
		}
		memory := all.Open(&limits.Owner{Server: "s"})
		defer memory.Close()
		body, w := io.Pipe()
		var sending sync.WaitGroup
		defer sending.Wait()
		defer body.Close()
		sending.Go(func() {
			_, err := io.WriteString(w, "data: "+strings.Repeat("x", 1<<20)+"\n")
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(w, ": more\n")
			}
		})
		req := asking()
		req.Room = memory
		begin := time.Now()
		if _, err := readEvents(t.Context(), body, noSecrets, req, receivers{}); !errors.Is(err, bodyreader.ErrSlow) || time.Since(begin) > 12*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}
