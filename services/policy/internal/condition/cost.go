package condition

import (
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

const (
	// maxEstimate bounds what a condition may cost for arguments of an ordinary size, and
	// maxCost what it may cost in the end: one for each step, and for each ten bytes of
	// text and each value inside of others that is gone through. CEL counts in a time
	// that grows with the square of the steps of a loop, and a step that fails costs
	// little, so that more would be a tenth of a second.
	maxEstimate = 20_000
	maxCost     = 6_000
	// assumedSize is how many entries, or characters, each list, map and text of the
	// arguments is taken to have where the cost is estimated.
	assumedSize = 30
)

// sizes estimates for arguments of an ordinary size.
type sizes struct{}

// EstimateSize implements checker.CostEstimator.
func (sizes) EstimateSize(checker.AstNode) *checker.SizeEstimate {
	return &checker.SizeEstimate{Max: assumedSize}
}

// EstimateCallCost implements checker.CostEstimator.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// prices counts what calls have cost. CEL's own prices go by types that are known when
// an expression is compiled, and those of arguments are not.
type prices struct{}

// CallCost implements interpreter.ActualCostEstimator.
func (prices) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	cost := uint64(1)
	switch function {
	case operators.Equals, operators.NotEquals, operators.In, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		"contains", "startsWith", "endsWith", "decimal":
		for _, a := range args {
			cost += weigh(a, 10*maxCost) / 10
		}
	case "path.within", "path.base", "path.ext", "url.scheme", "url.host", "url.port", "url.path", "url.under", ipInRead, "email.domain":
		if text, ok := args[0].(types.String); ok {
			cost += uint64(min(len(text), locator.MaxBytes)) / 4
		}
	case "size": // of a text, whose characters are counted
		if text, ok := args[0].(types.String); ok {
			cost += uint64(len(text)) / 10
		}
	case "matches":
		if text, ok := args[0].(types.String); ok {
			cost += uint64(len(text)) / 2
		}
	}
	return &cost
}

// weigh is how much there is to go through in a value, up to most: the bytes of texts,
// and ten for any other value and for each that holds others.
func weigh(v ref.Val, most uint64) uint64 {
	total := uint64(10)
	switch v := v.(type) {
	case types.String:
		return uint64(len(v))
	case *types.Optional:
		if v.HasValue() {
			total += weigh(v.GetValue(), most)
		}
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True && total < most; {
			key := it.Next()
			total += weigh(key, most-total)
			total += weigh(v.Get(key), most)
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True && total < most; {
			total += weigh(it.Next(), most-total)
		}
	}
	return total
}
