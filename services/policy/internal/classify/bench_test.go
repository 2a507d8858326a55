package classify_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// BenchmarkClassify measures how long it takes to classify all tools in the first set of labelled tools.
func BenchmarkClassify(b *testing.B) {
	all, size := tools(b, "lists"), 0
	for _, tool := range all {
		for _, text := range tool.Texts {
			size += len(text.Value)
		}
	}
	b.SetBytes(int64(size))
	for b.Loop() {
		for _, tool := range all {
			classify.Classify(tool, false)
		}
	}
}
