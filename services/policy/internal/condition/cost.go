package condition

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

const (
	// maxEstimate limits the estimated cost of a condition for arguments of ordinary size. maxCost limits the actual cost
	// of an evaluation. The cost is 1 for each step, for each nested value that is visited, and for every ten bytes of
	// text (200 bytes in the function size). With a higher maxCost, an evaluation could take a tenth of a second. There
	// are two reasons: the time for CEL's cost tracking grows with the square of the number of loop steps, and a step that
	// fails has a low cost.
	maxEstimate = 20_000
	maxCost     = 6_000
	// maxUntracked limits the product of the number of function calls in a condition and the length of the params in
	// bytes. Up to this limit, the cost is not tracked. Without loops, each call visits each byte at most once, so such an
	// evaluation takes at most a few milliseconds, as BenchmarkWorstWithoutLoops shows.
	maxUntracked = 64 << 10
	// matchCalls is the number of function calls that a call to `matches` counts as.
	matchCalls = 32
	// assumedSize is the number of entries or characters that the cost estimate assumes for each list, map or string in
	// the arguments.
	assumedSize = 30
)

// sizeEstimator assumes that all arguments have the size [assumedSize].
type sizeEstimator struct{}

// EstimateSize implements checker.CostEstimator.
func (sizeEstimator) EstimateSize(checker.AstNode) *checker.SizeEstimate {
	return &checker.SizeEstimate{Max: assumedSize}
}

// EstimateCallCost implements checker.CostEstimator.
func (sizeEstimator) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// costEstimator returns the actual costs of function calls. CEL can't compute these costs itself, because it does not
// know the types of the arguments when the condition is compiled.
type costEstimator struct{}

// CallCost implements interpreter.ActualCostEstimator.
func (costEstimator) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	cost := uint64(1)
	switch function {
	case operators.Equals, operators.NotEquals, operators.In, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		"contains", "startsWith", "endsWith", "decimal":
		for _, a := range args {
			cost += sizeOf(a, 10*maxCost) / 10
		}
	case "path.within", "path.base", "path.ext", "url.scheme", "url.host", "url.port", "url.path", "url.under", ipInEncoded, "email.domain":
		if text, ok := args[0].(types.String); ok {
			cost += uint64(min(len(text), locator.MaxBytes)) / 4
		}
	case "size": // counting characters takes less time per byte than a comparison
		if text, ok := args[0].(types.String); ok {
			cost += uint64(len(text)) / 200
		}
	case "matches":
		if text, ok := args[0].(types.String); ok {
			cost += uint64(len(text)) / 2
		}
	}
	return &cost
}

// countCalls returns the number of function calls in an expression, or -1 if the expression has loops. A call to
// `matches` counts as [matchCalls] calls.
func countCalls(checked *cel.Ast) int {
	calls, loops := 0, false
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		loops = loops || e.Kind() == ast.ComprehensionKind
		switch {
		case e.Kind() != ast.CallKind:
		case e.AsCall().FunctionName() == "matches":
			calls += matchCalls
		default:
			calls++
		}
	}))
	if loops {
		return -1
	}
	return calls
}

// sizeOf returns the size of a value. The size of a string is its length in bytes. The size of any other value is ten
// plus the sizes of its elements. sizeOf stops counting soon after the size has reached the limit.
func sizeOf(v ref.Val, limit uint64) uint64 {
	total := uint64(10)
	switch v := v.(type) {
	case types.String:
		return uint64(len(v))
	case *types.Optional:
		if v.HasValue() {
			total += sizeOf(v.GetValue(), limit)
		}
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True && total < limit; {
			key := it.Next()
			total += sizeOf(key, limit-total)
			total += sizeOf(v.Get(key), limit)
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True && total < limit; {
			total += sizeOf(it.Next(), limit-total)
		}
	}
	return total
}
