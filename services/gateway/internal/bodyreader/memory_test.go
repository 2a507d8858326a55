package bodyreader_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
)

// Case X3. If the length of a server's answer is announced, the memory for the whole answer is allocated once, after
// the first part has arrived.
func TestBody_LargeAnswerIsAllocatedOnce(t *testing.T) {
	const size = 15 << 20
	text := make([]byte, size)
	r, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	memory := r.Open(&limits.Owner{Server: "s"})
	defer memory.Close()
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			memory.Settle(0)
			if got, err := bodyreader.Body(b.Context(), io.NopCloser(bytes.NewReader(text)), size, 16<<20, memory); err != nil || len(got) != size {
				b.Fatalf("%d bytes, %v", len(got), err)
			}
		}
	})
	if got := result.AllocedBytesPerOp(); got > size*5/4 {
		t.Errorf("an answer of %d bytes allocates %d", size, got)
	}
}
