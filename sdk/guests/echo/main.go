// Command echo is a guest that answers each prompt with the prompt itself.
package main

import "github.com/sluice-mesh/sluice/sdk/guest"

func init() {
	guest.Serve(func(_ *guest.Agent, prompt string) (string, error) { return prompt, nil })
}

func main() {}
