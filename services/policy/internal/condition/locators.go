package condition

import (
	"fmt"
	"net/netip"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// A locatorFunction implements a function in conditions that parses a string as a path, URL or address with package
// locator. The function returns an error if the string can't be parsed.
type locatorFunction struct {
	result *cel.Type
	// unary implements a function with one argument. It is nil if the function has two arguments.
	unary func(text string) (ref.Val, error)
	// binary implements a function with two arguments, the second of which must be a constant. It parses the constant and
	// returns a function that compares the first argument with it. binary is nil if the function has only one argument.
	binary func(constant string) (func(text string) (bool, error), error)
}

// locatorFunctions returns the locator functions by name, such as "path.within".
func locatorFunctions() map[string]locatorFunction {
	return map[string]locatorFunction{
		"path.within": {result: cel.BoolType, binary: pathWithin},
		"path.base":   {result: cel.StringType, unary: pathFunction(locator.Path.Base)},
		"path.ext":    {result: cel.StringType, unary: pathFunction(locator.Path.Ext)},
		"url.scheme":  {result: cel.StringType, unary: urlFunction(func(u locator.URL) ref.Val { return types.String(u.Scheme) })},
		"url.host":    {result: cel.StringType, unary: urlFunction(func(u locator.URL) ref.Val { return types.String(u.Host) })},
		"url.port":    {result: cel.IntType, unary: urlFunction(urlPort)},
		"url.path":    {result: cel.StringType, unary: urlFunction(func(u locator.URL) ref.Val { return types.String(u.Path) })},
		"url.under":   {result: cel.BoolType, binary: urlUnder},
		ipInEncoded:   {result: cel.BoolType, binary: ipIn},
		"email.domain": {result: cel.StringType, unary: func(text string) (ref.Val, error) {
			domain, err := locator.EmailDomain(text)
			return types.String(domain), err
		}},
	}
}

func pathFunction(part func(locator.Path) (string, error)) func(string) (ref.Val, error) {
	return func(text string) (ref.Val, error) {
		p, err := locator.ParsePath(text)
		if err != nil {
			return nil, err
		}
		found, err := part(p)
		return types.String(found), err
	}
}

func urlFunction(part func(locator.URL) ref.Val) func(string) (ref.Val, error) {
	return func(text string) (ref.Val, error) {
		u, err := locator.ParseURL(text)
		if err != nil {
			return nil, err
		}
		return part(u), nil
	}
}

func urlPort(u locator.URL) ref.Val {
	if u.Port == 0 {
		return types.NewErr("url.port: the URL has no port, and its scheme has no default port")
	}
	return types.Int(u.Port)
}

func pathWithin(constant string) (func(string) (bool, error), error) {
	root, err := locator.ParsePath(constant)
	return func(text string) (bool, error) {
		p, err := locator.ParsePath(text)
		if err != nil {
			return false, err
		}
		return p.Within(root)
	}, err
}

func urlUnder(constant string) (func(string) (bool, error), error) {
	base, err := locator.ParseBase(constant)
	return func(text string) (bool, error) {
		u, err := locator.ParseURL(text)
		return err == nil && u.Under(base), err
	}, err
}

func ipIn(constant string) (func(string) (bool, error), error) {
	network, err := locator.ParsePrefix(constant)
	return func(text string) (bool, error) {
		var address netip.Addr
		address, err := locator.ParseIP(text)
		return err == nil && network.Contains(address), err
	}, err
}

// locators returns the CEL options that declare the locator functions, such as path.within. Functions with a constant
// argument are declared without an implementation, because [locatorOptimizations] provides it when a condition is
// compiled.
func locators() []cel.EnvOption {
	var options []cel.EnvOption
	for name, f := range locatorFunctions() {
		if f.binary != nil {
			options = append(options, cel.Function(name, cel.Overload(name, []*cel.Type{cel.StringType, cel.StringType}, f.result)))
			continue
		}
		options = append(options, cel.Function(name, cel.Overload(name, []*cel.Type{cel.StringType}, f.result), cel.SingletonUnaryBinding(f.read(name))))
	}
	return options
}

// read returns the CEL implementation of a locator function with one argument.
func (f locatorFunction) read(name string) func(ref.Val) ref.Val {
	return func(arg ref.Val) ref.Val {
		text, ok := arg.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(arg)
		}
		value, err := f.unary(string(text))
		if err != nil {
			return types.NewErr("%s: the text %w", decodeIPIn(name), err)
		}
		return value
	}
}

// locatorOptimizations implements the locator functions with a constant argument, so that the constant is parsed only
// once for each condition. The optimizations are designed for regular expressions, but they accept all constant
// strings.
func locatorOptimizations() []*interpreter.RegexOptimization {
	var out []*interpreter.RegexOptimization
	for name, f := range locatorFunctions() {
		if f.binary == nil {
			continue
		}
		out = append(out, &interpreter.RegexOptimization{Function: name, RegexIndex: 1,
			Factory: func(call interpreter.InterpretableCall, constant string) (interpreter.InterpretableCall, error) {
				compare, err := f.binary(constant)
				if err != nil {
					return nil, err
				}
				return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(values ...ref.Val) ref.Val {
					return compareText(name, values[0], compare)
				}), nil
			}})
	}
	return out
}

func compareText(name string, arg ref.Val, compare func(string) (bool, error)) ref.Val {
	text, ok := arg.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	held, err := compare(string(text))
	if err != nil {
		return types.NewErr("%s: the text %w", decodeIPIn(name), err)
	}
	return types.Bool(held)
}

// checkLocator refuses a call to a locator function if its second argument is not a constant or can't be parsed.
func checkLocator(f locatorFunction, args []ast.Expr, refuse refuseFunc) {
	if f.binary == nil {
		return
	}
	constant := args[1]
	if constant.Kind() != ast.LiteralKind {
		refuse(constant, "the second argument is not a constant", "write a constant string; for several strings, join several tests with ||")
		return
	}
	if _, err := f.binary(string(constant.AsLiteral().(types.String))); err != nil {
		refuse(constant, fmt.Sprintf("%q %v", constant.AsLiteral(), err), "")
	}
}
