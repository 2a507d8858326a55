package demo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const merchant = "merchant"

type account struct {
	Name    string `json:"name"`
	Balance string `json:"balance" jsonschema:"a decimal with two places, such as 12.50"`
}

// ledger stores balances in cents, so that sums are exact.
type ledger struct {
	mu    sync.Mutex
	cents map[string]int64
}

func newLedger() *ledger {
	return &ledger{cents: map[string]int64{merchant: 1000_00, "ana": 20_00, "ben": 0}}
}

func (l *ledger) accounts() []account {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]account, 0, len(l.cents))
	for name, cents := range l.cents {
		all = append(all, account{Name: name, Balance: formatCents(cents)})
	}
	slices.SortFunc(all, func(a, b account) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// refund moves cents from the merchant to a customer, and returns both accounts after the transfer. If it returns an
// error, it has not moved any money.
func (l *ledger) refund(customer string, cents int64) (from, to account, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.cents[customer]; !ok || customer == merchant {
		return account{}, account{}, fmt.Errorf("no customer account %q exists: call list_accounts to see the accounts", customer)
	}
	if l.cents[merchant] < cents {
		return account{}, account{}, fmt.Errorf("the merchant has %s, which is less than %s: nothing was moved",
			formatCents(l.cents[merchant]), formatCents(cents))
	}
	l.cents[merchant] -= cents
	l.cents[customer] += cents
	return account{merchant, formatCents(l.cents[merchant])}, account{customer, formatCents(l.cents[customer])}, nil
}

// amountPattern matches an amount: at most 9 digits, optionally followed by a point and two digits.
const (
	amountPattern = `^(0|[1-9][0-9]{0,8})(\.[0-9]{2})?$`
	wholeDigits   = 9
	placeDigits   = 2
)

// parseAmount parses a decimal that matches amountPattern, such as "12.50" or "12", as cents. The result is greater
// than 0.
func parseAmount(s string) (int64, error) {
	whole, places, dotted := strings.Cut(s, ".")
	if !dotted {
		places = "00"
	}
	wellFormed := isDigits(whole) && len(whole) <= wholeDigits && (len(whole) == 1 || whole[0] != '0') &&
		isDigits(places) && len(places) == placeDigits
	cents, err := strconv.ParseInt(whole+places, 10, 64)
	if !wellFormed || err != nil || cents == 0 {
		return 0, fmt.Errorf("the amount %q is not a sum of money above 0: write a decimal such as 12.50", s)
	}
	return cents, nil
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// formatCents formats a balance, which is never negative, as a decimal with two places.
func formatCents(cents int64) string {
	return fmt.Sprintf("%d.%02d", cents/100, cents%100)
}
