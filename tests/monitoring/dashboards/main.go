// Check dashboards against Grafana's schema: fields that it does not know, that it requires or that have another type,
// also in the panels and queries of its own plugins. Prints each error with its place; exits 1 if there is one.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func check(content []byte) []string {
	var strict, found dashboard.Dashboard
	if err := strict.UnmarshalJSONStrict(content); isError(err) {
		return []string{err.Error()}
	}
	if err := json.Unmarshal(content, &found); err != nil {
		return []string{err.Error()}
	}
	if err := found.Validate(); isError(err) {
		return []string{err.Error()}
	}
	var before, after any
	kept, err := json.Marshal(found)
	if err == nil {
		err = errors.Join(json.Unmarshal(content, &before), json.Unmarshal(kept, &after))
	}
	if err != nil {
		return []string{err.Error()}
	}
	return append(unknownPanels(found), lost("", before, after)...)
}

// Return the panels whose type is none of Grafana's own: the schema lets plugins of others in.
func unknownPanels(found dashboard.Dashboard) []string {
	var places []string
	for index, either := range found.Panels {
		if either.Panel == nil {
			continue
		}
		if _, known := cog.ConfigForPanelcfgVariant(either.Panel.Type); !known {
			places = append(places, fmt.Sprintf("panels[%d]: Grafana has no panel %q", index, either.Panel.Type))
		}
	}
	return places
}

// Return whether there is an error: without one, the SDK returns an empty list, which is not nil.
func isError(err error) bool {
	return err != nil && err.Error() != ""
}

// Return the places of values that Grafana's types do not keep: some parts of the schema ignore what they do not know.
func lost(place string, before, after any) []string {
	var places []string
	switch value := before.(type) {
	case map[string]any:
		other, _ := after.(map[string]any)
		for name, item := range value {
			places = append(places, lost(place+"."+name, item, other[name])...)
		}
	case []any:
		other, _ := after.([]any)
		for index, item := range value {
			if index < len(other) {
				places = append(places, lost(fmt.Sprintf("%s[%d]", place, index), item, other[index])...)
			} else {
				places = append(places, fmt.Sprintf("%s[%d]: unknown to Grafana", place, index))
			}
		}
	default:
		if !reflect.DeepEqual(before, after) {
			places = append(places, fmt.Sprintf("%s: %v became %v", place, before, after))
		}
	}
	return places
}

func main() {
	plugins.RegisterDefaultPlugins()
	status := 0
	for _, path := range os.Args[1:] {
		content, err := os.ReadFile(path)
		if err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		for _, line := range check(content) {
			fmt.Printf("%s: %s\n", path, line)
			status = 1
		}
	}
	os.Exit(status)
}
