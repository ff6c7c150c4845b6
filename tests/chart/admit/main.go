// SPDX-License-Identifier: Apache-2.0
// admit MANIFESTS PODS VERSION: pods as the API server's own code admits them under the policies of MANIFESTS.
//
// PODS has a pod in each YAML document. Prints a JSON object a pod: the pod after all MutatingAdmissionPolicies, and the
// warnings of all ValidatingAdmissionPolicies. VERSION: whose CEL expressions may be used, such as 1.34.
//
// Too large for CI. Build it in this folder, in a quarter of an hour: go mod tidy && go build
// Then: ADMIT=tests/chart/admit/admit pytest tests/python/test_chart.py
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "admit:", err)
		os.Exit(1)
	}
}

func documents(path string) (found []json.RawMessage) {
	file, err := os.Open(path)
	check(err)
	defer file.Close()
	decoder := yaml.NewYAMLToJSONDecoder(file)
	for {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return found
		}
		check(err)
		if string(document) != "null" {
			found = append(found, document)
		}
	}
}

type admitter struct {
	scheme *runtime.Scheme
	env    *environment.EnvSet
}

var podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
var options = plugincel.OptionalVariableDeclarations{HasAuthorizer: true}

func (a admitter) attributes(pod *core.Pod) *admission.VersionedAttributes {
	record := admission.NewAttributesRecord(pod, nil, podKind, pod.Namespace, pod.Name, podResource, "", admission.Create, nil, false, nil)
	attributes, err := admission.NewVersionedAttributes(record, podKind, admission.NewObjectInterfacesFromScheme(a.scheme))
	check(err)
	return attributes
}

func (a admitter) compiler(variables []admissionregistration.Variable) *plugincel.CompositedCompiler {
	compiler, err := plugincel.NewCompositedCompiler(a.env)
	check(err)
	var accessors []plugincel.NamedExpressionAccessor
	for _, each := range variables {
		accessors = append(accessors, &validating.Variable{Name: each.Name, Expression: each.Expression})
	}
	compiler.CompileAndStoreVariables(accessors, options, environment.NewExpressions)
	return compiler
}

func (a admitter) matches(compiler *plugincel.CompositedCompiler, conditions []admissionregistration.MatchCondition, pod *core.Pod) bool {
	var accessors []plugincel.ExpressionAccessor
	for i := range conditions {
		accessors = append(accessors, (*matchconditions.MatchCondition)(&conditions[i]))
	}
	fail := admissionregistration.Fail
	matcher := matchconditions.NewMatcher(compiler.CompileCondition(accessors, options, environment.NewExpressions), &fail, "policy", "", "")
	result := matcher.Match(context.Background(), a.attributes(pod), nil, nil)
	check(result.Error)
	return result.Matches
}

func (a admitter) mutate(policy *admissionregistration.MutatingAdmissionPolicy, pod *core.Pod) *core.Pod {
	compiler := a.compiler(policy.Spec.Variables)
	if !a.matches(compiler, policy.Spec.MatchConditions, pod) {
		return pod
	}
	withPatches := options
	withPatches.HasPatchTypes = true
	for _, mutation := range policy.Spec.Mutations {
		condition := &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}
		patcher := patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(condition, withPatches, environment.NewExpressions))
		patched, err := patcher.Patch(compiler.CreateContext(context.Background()), patch.Request{
			MatchedResource: podResource, VersionedAttributes: a.attributes(pod),
			ObjectInterfaces: admission.NewObjectInterfacesFromScheme(a.scheme),
		}, celconfig.RuntimeCELCostBudget)
		check(err)
		pod = patched.(*core.Pod)
	}
	return pod
}

func (a admitter) warn(policy *admissionregistration.ValidatingAdmissionPolicy, pod *core.Pod) (warnings []string) {
	compiler := a.compiler(policy.Spec.Variables)
	if !a.matches(compiler, policy.Spec.MatchConditions, pod) {
		return nil
	}
	for _, each := range policy.Spec.Validations {
		expressions := []plugincel.ExpressionAccessor{
			&validating.ValidationCondition{Expression: each.Expression},
			&validating.MessageExpressionCondition{MessageExpression: each.MessageExpression},
		}
		evaluator := compiler.CompileCondition(expressions, options, environment.NewExpressions)
		attributes := a.attributes(pod)
		request := plugincel.CreateAdmissionRequest(attributes.Attributes, attributesResource(), attributesKind())
		results, _, err := evaluator.ForInput(compiler.CreateContext(context.Background()), attributes, request,
			plugincel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
		check(err)
		check(results[0].Error)
		check(results[1].Error)
		if results[0].EvalResult.Value() != true {
			warnings = append(warnings, results[1].EvalResult.Value().(string))
		}
	}
	return warnings
}

func main() {
	if len(os.Args) != 4 {
		check(errors.New("usage: admit MANIFESTS PODS VERSION"))
	}
	scheme := runtime.NewScheme()
	check(core.AddToScheme(scheme))
	a := admitter{scheme, environment.MustBaseEnvSet(version.MustParseMajorMinor(os.Args[3]))}
	manifests := documents(os.Args[1])
	for _, document := range documents(os.Args[2]) {
		pod := &core.Pod{}
		check(json.Unmarshal(document, pod))
		warnings := []string{}
		for _, manifest := range manifests {
			policy := &admissionregistration.MutatingAdmissionPolicy{}
			check(json.Unmarshal(manifest, policy))
			if policy.Kind == "MutatingAdmissionPolicy" {
				pod = a.mutate(policy, pod)
			}
		}
		for _, manifest := range manifests {
			policy := &admissionregistration.ValidatingAdmissionPolicy{}
			check(json.Unmarshal(manifest, policy))
			if policy.Kind == "ValidatingAdmissionPolicy" {
				warnings = append(warnings, a.warn(policy, pod)...)
			}
		}
		check(json.NewEncoder(os.Stdout).Encode(map[string]any{"pod": pod, "warnings": warnings}))
	}
}

func attributesResource() metav1.GroupVersionResource { return metav1.GroupVersionResource(podResource) }
func attributesKind() metav1.GroupVersionKind         { return metav1.GroupVersionKind(podKind) }
